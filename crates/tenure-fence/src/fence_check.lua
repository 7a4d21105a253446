return tenure_fence(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
