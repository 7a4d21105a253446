-- Extends holds, confirms grants and keeps the places of waiters. Each takes: its id, and whether the client
-- believes that it waits. A number answers a holder: how long the hold lives, 0 if there is none.

local function decide(record, id, is_waiter)
  local hold, waits = renew_existing(record, id)
  if waits then
    keep_queue(record)
    return waiting_answer(record, id)
  end
  if not hold then return 0 end
  return is_waiter and grant_answer(hold) or hold.ends - t
end

insist()
local answers = { padded(now) }
for i = 1, #KEYS - 4 do
  local key, id, is_waiter = KEYS[i + 4], ARGV[2 * i + 2], ARGV[2 * i + 3] == '1'
  local held = redis.pcall('GET', key)
  if type(held) ~= 'string' then held = nil end
  -- The common case: a mutex without anything special.
  if held and not is_waiter and sub(held, 1, 35) == id .. ' - ' then
    local ttl = tonumber(sub(held, 70, 77))
    call('PEXPIREAT', key, t + ttl - 1)
    answers[i + 1] = ttl
  else
    local record = read(key, held)
    if record.is_bad then
      answers[i + 1] = 0
    else
      settle(record)
      answers[i + 1] = decide(record, id, is_waiter)
      grant_waiters(record)
      write(record)
    end
  end
end
tell()
return answers
