-- Notes that somebody follows a resource, for so many ms from now; each change is published from then on.

operation('observe', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  call('ZREMRANGEBYSCORE', OBSERVED, '-inf', t)
  call('ZADD', OBSERVED, t + ARGV[4], KEYS[5])
  call('PEXPIRE', OBSERVED, ARGV[4])
  return { padded(now) }
end)
