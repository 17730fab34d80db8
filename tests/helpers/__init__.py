"""What tests share: made-up data, jobs and run folders, and processes that start them."""
