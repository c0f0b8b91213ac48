"""What tests of mq, and of plugins for it, need to put a hand inside. Shipped: an author's tests use it too."""
