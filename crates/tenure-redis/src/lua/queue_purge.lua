-- Removes items that nobody has. Takes: `d` for dead letters or `l` for the others; after which number; up to which; how many to
-- remove and how many to look at, at most. Answers how many were removed, and the number of the last one looked at, empty if
-- there are no more.

local function withdraw(number)
  local value = call('HGET', ITEMS, number)
  local lane = lane_of(number, value or ZERO .. ZERO .. TAB)
  local state = states_of({ lane })[1]
  if is_group(lane) and not (state and sub(state, 1, 16) == number) then
    call('ZREM', BEHIND, behind_of(sub(lane, 2), number, sub(value, 17, 32)))
    call('HDEL', ITEMS, number)
    call('ZREM', NUMBERS, number)
    forget_context(number)
    flush()
    return true
  end
  if state and claim_of(state) ~= NOBODY then return false end
  forget_context(number)
  advance(lane, number, state and rests_of(state) or 0)
  flush()
  return true
end

local function erase(number)
  call('HDEL', LETTERS, number)
  forget_context(number)
  flush()
  return call('ZREM', DEAD, number) == 1
end

operation('purge', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local is_dead, most, limit = ARGV[4] == 'd', tonumber(ARGV[7]), tonumber(ARGV[8])
  local numbers =
    call('ZRANGEBYSCORE', is_dead and DEAD or NUMBERS, '(' .. ARGV[5], ARGV[6], 'LIMIT', 0, limit)
  local count, last = 0, ''
  for _, number in ipairs(numbers) do
    if count >= most then break end
    last = number
    local remove = is_dead and erase or withdraw
    if remove(number) then count = count + 1 end
  end
  finish()
  return { now_text, count, #numbers < limit and '' or last }
end)
