"""What a master measures of its job: speeds, starts, growth of tables, where the time goes. Nothing here decides."""
