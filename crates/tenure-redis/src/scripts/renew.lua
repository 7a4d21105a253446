-- Extends holds, confirms grants and keeps the places of waiters. Takes the id of each, and then for each run of
-- alike ones: how many, and whether the client believes that they wait. A number answers a holder: how long the hold
-- lives, 0 if there is none.

local function decide(record, id, is_waiter)
  local hold, waits = renew_existing(record, id)
  if waits then
    keep_queue(record)
    return waiting_answer(record, id, waits)
  end
  if not hold then return 0 end
  return is_waiter and grant_answer(hold) or hold.ends - t
end

local function uncommon(key, id, is_waiter, held)
  local record = read(key, held)
  if record.is_bad then return 0 end
  settle(record)
  local answer = decide(record, id, is_waiter)
  grant_waiters(record)
  write(record)
  return answer
end

operation('renew', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local answers = { padded(now) }
  -- The ttl of the last hold, as text, as a number, and what it makes the end.
  local ttl_text, ttl, ends
  local i, run = 0, #KEYS
  while i < #KEYS - 4 do
    local is_waiter = ARGV[run + 1] == '1'
    for _ = 1, tonumber(ARGV[run]) do
      i = i + 1
      local key, id = KEYS[i + 4], ARGV[i + 3]
      local held = try('GET', key)
      if type(held) ~= 'string' then held = nil end
      -- The common case: a mutex without anything special.
      if held and not is_waiter and is_plain(held, id) then
        local text = sub(held, 70, 77)
        if text ~= ttl_text then
          ttl_text, ttl = text, tonumber(text)
          ends = digits(t + ttl - 1)
        end
        call('PEXPIREAT', key, ends)
        answers[i + 1] = ttl
      else
        answers[i + 1] = uncommon(key, id, is_waiter, held)
      end
    end
    run = run + 2
  end
  tell()
  return answers
end)
