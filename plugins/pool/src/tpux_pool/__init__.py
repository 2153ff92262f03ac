"""The allocator `pool`, which borrows TPUs that a few people share by agreement; and the holds of these people."""
