-- What one server of a quorum does. It decides for itself alone; a majority of such decisions is a grant (`quorum.rs`).
--
-- KEYS: the boot marker, the largest number of all counters, finished ids, observed resources, then the key of each resource.
-- ARGV: the marker as the client knows it: the incarnation of the server, and the longest ttl of the quorum in ms. Then what each operation
-- takes. What takes a batch begins with all ids in one text, and then has for each run of alike requests: how many, and what they ask for.
--
-- A mutex or a writer is the string under the resource's own key, as clients of the classic protocol have it. Beside it, under
-- `tenure.1.<letter>:<key>`, are C: its counter; H: when shared holds come free, and T: their texts; Q: the places of waiters, W: their
-- texts, X: how long they live; V: the value.
--
-- A hold is stored as `id flag number granted ttl client max_hold min_hold lock_delay attempt slot label`. The flag is m(utex),
-- w(riter), r(eader) or p(ool), and a capital if the units only rest. The number is what the counter was when it was granted or
-- stamped. Times: `now` in microseconds, `t` and all ends in milliseconds, by this server's clock.
--
-- Any key may go by itself (`DEL`, eviction), and may be a stranger's. So nothing is read from one key because another one says that it is
-- there, what does not fit together ends within a ttl, and an operation that fails on one resource of a batch says so for that one alone.

local call, try, try_to
local floor, max, min, sub, byte, format, concat, upper
local function open()
  call, try, try_to = redis.call, redis.pcall, pcall
  floor, max, min = math.floor, math.max, math.min
  sub, byte, format, concat, upper = string.sub, string.byte, string.format, table.concat, string.upper
end

local FINISHED_MEMORY, COUNTER_MEMORY, QUEUE_LIFE = 60000, 3600000, 60000
local AHEAD_MAX, NUMBER_MAX, NEVER = 3600000000, 9007199254740991, 9007199254740991
-- How many waiters or ended holds one call looks at, and how many waiters it tells: the rest is seen to by the next call, and by
-- heartbeats. Each costs some 2 us.
local LOOKED_AT_MAX, TOLD_MAX = 128, 512
-- For how long a value that is gone keeps its token, in ms: longer than any call.
local GONE_FOR = 10000
local FOREIGN = '????????????????????????????????'
local SEEN, WAIT, INBOX, CHANGES = 'tenure.1.seen', 'tenure.1.wait', 'tenure.1.inbox:', 'tenure.1.changes:'
local BASE = 'tenure.1.base'

local BOOT, MAX, FINISHED, OBSERVED
local now, t, top, has_top, is_top_new, base, is_base_lost, has_finished, has_observers

local function digits(number) return format('%.0f', number) end
local HALF = 100000000
local function padded(number)
  local high = floor(number / HALF)
  return format('%08d%08d', high, number - high * HALF)
end

-- Reads a number that a token may have.
local function number_in(text)
  local number = text and tonumber(text)
  if number and number >= 0 and number < NUMBER_MAX then return number end
end

-- Begins a call, and returns whether the server counts: not if it has started anew since it was let in, if the client takes another
-- ttl for the longest, or if the largest of all counters is gone. Then also what the marker says.
local function begin(KEYS, ARGV)
  if not call then open() end
  BOOT, MAX, FINISHED, OBSERVED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  t = floor(now / 1000)
  local marks = call('MGET', BOOT, MAX, BASE)
  top, is_top_new = number_in(marks[2]), false
  has_top = top ~= nil
  top = top or 0
  -- Without a base of this run, all that this server has ever given is below the largest.
  local marker = ARGV[1] .. ' '
  base = marks[3] and sub(marks[3], 1, #marker) == marker and number_in(sub(marks[3], #marker + 1))
  is_base_lost = not base
  base = base or top
  has_finished, has_observers = false, false
  if call('EXISTS', FINISHED, OBSERVED) > 0 then
    has_finished = call('EXISTS', FINISHED) == 1
    has_observers = call('EXISTS', OBSERVED) == 1
  end
  return has_top and marks[1] == ARGV[1], marks[1]
end

-- What an operation says of one resource where it fails there.
local function apart(operate, ...)
  local is_done, answer = try_to(operate, ...)
  if is_done then return answer end
  return { 'E', sub(type(answer) == 'table' and answer.err or tostring(answer), 1, 200) }
end

-- A server that is full refuses what could make it fuller, but not after the first write of a script.
local function insist() if IS_SCRIPT then call('PEXPIRE', FINISHED, FINISHED_MEMORY) end end

local function beside(letter, key) return 'tenure.1.' .. letter .. ':' .. key end

-- Counters. One that is not there is as large as the largest of all, so that none ever falls. None is below the base: what was learned when
-- this server was let in. A counter that it had read from its snapshot would be behind what others have given meanwhile.
local function counter(key, otherwise)
  return max(number_in(call('MGET', beside('C', key))[1]) or otherwise or top, base)
end
local function raise(key, number)
  call('SET', beside('C', key), digits(number), 'PX', COUNTER_MEMORY)
  if number > top then top, is_top_new = number, true end
end
local function keep_top()
  if is_top_new then call('SET', MAX, padded(top)) end
  is_top_new = false
end
local function keep_base(marker)
  if is_base_lost then call('SET', BASE, marker .. ' ' .. digits(base)) end
  is_base_lost = false
end

-- The answers to a batch. Where all are the same number, it is said once.
local function done(answers)
  keep_top()
  local first = answers[2]
  if #answers < 3 or type(first) ~= 'number' then return answers end
  for i = 3, #answers do
    if answers[i] ~= first then return answers end
  end
  return { answers[1], 'S', first }
end
-- The id of a request, counted from 1.
local function id_at(ids, i) return sub(ids, 32 * i - 31, 32 * i) end

local function changed(key)
  if has_observers and call('ZSCORE', OBSERVED, key) then call('PUBLISH', CHANGES .. key, '') end
end

local function is_finished(id)
  local until_t = has_finished and call('ZSCORE', FINISHED, id)
  return until_t and tonumber(until_t) > t
end
local function finish(id)
  call('ZREMRANGEBYSCORE', FINISHED, '-inf', t)
  call('ZADD', FINISHED, t + FINISHED_MEMORY, id)
  call('PEXPIRE', FINISHED, FINISHED_MEMORY)
  has_finished = true
end

-- Holds.

local TERMS = '^(%d+) (%x+) (%d+) (%d+) (%d+) (%d+) ([%d-]+) (.*)$'
local function unpack_terms(hold, text)
  local ttl, client, longest, shortest, delay, attempt, slot, label = text:match(TERMS)
  if not ttl or #ttl ~= 8 then return nil end
  hold.ttl, hold.client, hold.max, hold.min = tonumber(ttl), client, tonumber(longest), tonumber(shortest)
  hold.delay, hold.attempt, hold.slot, hold.label = tonumber(delay), tonumber(attempt), slot, label
  return hold
end
local function pack(hold)
  return concat({
    hold.id, hold.flag, padded(hold.number), padded(hold.granted), format('%08.0f', hold.ttl), hold.client,
    digits(hold.max), digits(hold.min), digits(hold.delay), digits(hold.attempt), hold.slot, hold.label,
  }, ' ')
end
local function is_resting(hold) return hold.flag == upper(hold.flag) end
local function unpack_hold(text, free)
  local id, flag, number, granted, terms = text:match('^(%x+) ([mwrpMWRP]) (%d+) (%d+) (.*)$')
  -- A stranger's text may look much the same: columns are as wide as they are written.
  local is_ours = id and #id == 32 and #number == 16 and #granted == 16
  local hold = is_ours and unpack_terms({ id = id, flag = flag, number = tonumber(number), granted = tonumber(granted) }, terms)
  if not hold then
    -- What another client of the classic protocol has set: all that is known is its text.
    hold = {
      id = FOREIGN, flag = 'm', number = 0, granted = now, ttl = 0, client = '0', max = 0, min = 0, delay = 0, attempt = 0,
      slot = '-', label = text,
    }
  end
  hold.free, hold.ends = free, free
  if not is_resting(hold) then
    hold.ends = free - hold.delay
    -- Nobody released it in time: its units rest.
    if hold.ends <= t then hold.flag, hold.ends = upper(hold.flag), free end
  end
  return hold
end

-- The hold under the resource's own key. Redis still shows a key in the millisecond in which it ends, so each ends one earlier.
local function exclusive(key)
  local text = try('GET', key)
  if not text then return nil end
  local free = call('PEXPIRETIME', key)
  return unpack_hold(type(text) == 'string' and text or '', free < 0 and NEVER or free + 1)
end

local function drop_shared(shared, id)
  local text = call('HGET', shared.texts, id)
  local slot = text and unpack_hold(text, 0).slot
  if slot and slot ~= '-' then call('HDEL', shared.texts, 's' .. slot) end
  call('HDEL', shared.texts, id)
  call('ZREM', shared.ends, id)
  shared.count = shared.count - 1
end
-- Where the texts are gone, the units are held by nobody knows whom until they come free by themselves: then there is no kind.
local function shared_of(key)
  local shared = { ends = beside('H', key), texts = beside('T', key) }
  shared.count = call('ZCARD', shared.ends)
  if shared.count == 0 then return shared end
  for _, id in ipairs(call('ZRANGEBYSCORE', shared.ends, '-inf', t, 'LIMIT', 0, LOOKED_AT_MAX)) do drop_shared(shared, id) end
  if shared.count == 0 then
    call('DEL', shared.texts)
  else
    shared.kind, shared.capacity = (call('HGET', shared.texts, 'k') or ''):match('^([rp]) (%d+)$')
    shared.capacity = tonumber(shared.capacity)
  end
  return shared
end
local function shared_hold(shared, id)
  local free, text = tonumber(call('ZSCORE', shared.ends, id) or nil), call('HGET', shared.texts, id)
  return free and text and unpack_hold(text, free)
end
-- Whether somebody holds a slot. A note of it whose hold is gone is no hold.
local function is_taken(shared, slot)
  local id = call('HGET', shared.texts, 's' .. slot)
  return id and call('ZSCORE', shared.ends, id)
end

-- All that is held of a resource here: its own key, and the shared holds.
local function holds_of(key)
  local record = { key = key, own = exclusive(key) }
  record.shared = record.own and { count = 0 } or shared_of(key)
  return record
end
local function hold_of(record, id)
  local hold
  if record.own then
    hold = record.own.id == id and record.own
  elseif record.shared.count > 0 then
    hold = shared_hold(record.shared, id)
  end
  return hold and not is_resting(hold) and hold or nil
end

local function is_exclusive(hold)
  local flag = upper(hold.flag)
  return flag == 'M' or flag == 'W'
end
local function put(record, hold)
  if is_exclusive(hold) then
    call('SET', record.key, pack(hold), 'PXAT', hold.free - 1)
    record.own = hold
    return
  end
  local shared = record.shared
  -- What the ends do not know any more must not stay among the texts.
  if shared.count == 0 then call('DEL', shared.texts) end
  if call('ZADD', shared.ends, hold.free, hold.id) == 1 then shared.count = shared.count + 1 end
  call('HSET', shared.texts, hold.id, pack(hold))
  if hold.slot ~= '-' then call('HSET', shared.texts, 's' .. hold.slot, hold.id) end
  local last = call('ZRANGE', shared.ends, -1, -1, 'WITHSCORES')
  call('PEXPIREAT', shared.ends, last[2])
  call('PEXPIREAT', shared.texts, last[2])
end
local function remove(record, hold)
  if is_exclusive(hold) then
    call('DEL', record.key)
    record.own = nil
  else
    drop_shared(record.shared, hold.id)
    if record.shared.count == 0 then call('DEL', record.shared.texts) end
  end
end
-- A value that was to live as long as this hold goes with it.
local function drop_value(key, hold)
  local value = call('HMGET', beside('V', key), 'claim', 'keep')
  if value[1] == hold.id and value[2] == '' then call('DEL', beside('V', key)) end
end
-- Ends a hold. Its units rest until then, if that is still to come.
local function end_hold(record, hold, rest_until)
  drop_value(record.key, hold)
  if rest_until > t then
    hold.flag, hold.free = upper(hold.flag), rest_until
    put(record, hold)
  else
    remove(record, hold)
  end
end
local function extend(hold)
  local ends = t + hold.ttl
  if hold.max > 0 then ends = min(ends, floor(hold.granted / 1000) + hold.max) end
  hold.ends = max(hold.ends or 0, ends)
  hold.free = hold.ends + hold.delay
end

-- Waiters. They stand in the order of their tickets, which is the same on all servers: who comes after another one is not
-- granted before it. A waiter that is not heard of leaves by itself.

local function queue_of(key)
  local queue = { places = beside('Q', key), texts = beside('W', key), lives = beside('X', key) }
  queue.count = call('ZCARD', queue.places)
  return queue
end
local function leave(queue, id)
  if queue.count == 0 then return false end
  call('HDEL', queue.texts, id)
  call('ZREM', queue.lives, id)
  if call('ZREM', queue.places, id) == 0 then return false end
  queue.count = queue.count - 1
  return true
end
local function prune(queue)
  if queue.count == 0 then return end
  for _, id in ipairs(call('ZRANGEBYSCORE', queue.lives, '-inf', t, 'LIMIT', 0, LOOKED_AT_MAX)) do leave(queue, id) end
  if queue.count == 0 or call('ZCARD', queue.lives) >= queue.count then return end
  -- Some lives are gone. Who lives is back with its next heartbeat, at its old place; who does not would stand in the way for good.
  for _, id in ipairs(call('ZRANGE', queue.places, 0, LOOKED_AT_MAX - 1)) do
    if not call('ZSCORE', queue.lives, id) then leave(queue, id) end
  end
end
local function enqueue(queue, id, ticket, life, text)
  if call('ZADD', queue.places, ticket, id) == 1 then queue.count = queue.count + 1 end
  call('ZADD', queue.lives, t + life, id)
  call('HSET', queue.texts, id, text)
  for _, key in ipairs({ queue.places, queue.lives, queue.texts }) do call('PEXPIRE', key, QUEUE_LIFE) end
end
-- Calls `look(id, place, kind)` for each waiter, the first one first, until it returns something, and returns that.
local function each_waiter(queue, most, look)
  local at = 0
  while at < queue.count and at < most do
    local page = call('ZRANGE', queue.places, at, at + 15, 'WITHSCORES')
    for i = 1, #page, 2 do
      local found = look(page[i], tonumber(page[i + 1]), call('HGET', queue.texts, page[i]) or 'm')
      if found ~= nil then return found end
    end
    at = at + 16
  end
end
local function is_behind(queue, id, ticket, kind)
  if queue.count == 0 then return false end
  local behind = each_waiter(queue, LOOKED_AT_MAX, function(other, place, text)
    if other == id or place > ticket or (place == ticket and other > id) then return false end
    -- Readers do not stand in each other's way.
    if kind ~= 'r' or sub(text, 1, 1) ~= 'r' then return true end
  end)
  -- Behind more readers than are looked at: those are granted first.
  if behind == nil then return queue.count > LOOKED_AT_MAX end
  return behind
end
-- Tells those who could hold now to ask again.
local function wake(record, queue)
  prune(queue)
  if queue.count == 0 or record.own then return end
  local is_first = true
  each_waiter(queue, TOLD_MAX, function(id, _, text)
    local kind, client = text:match('^(%a) %d (%x+)')
    -- What it waits for is gone. It says so again with its next heartbeat.
    if not kind then return end
    if not is_first and kind ~= 'r' then return true end
    if kind ~= 'p' and record.shared.count > 0 and not (kind == 'r' and record.shared.kind == 'r') then return true end
    call('PUBLISH', INBOX .. client, 'L ' .. id)
    is_first = false
    if kind ~= 'r' then return true end
  end)
end

-- Claims.

local function is_free(record, claim)
  if record.own then return false end
  local shared = record.shared
  if shared.count == 0 then return true end
  if claim.kind == 'r' then return shared.kind == 'r' end
  return claim.kind == 'p' and shared.kind == 'p' and not is_taken(shared, claim.slot)
end

local function busy(record, queue, claim)
  local shown, free, taken, shared = record.own, -1, {}, record.shared
  if shown then
    free = shown.free
  elseif shared.count > 0 then
    -- A pool has no more slots than this, and of readers one is enough.
    local ids = call('ZRANGE', shared.ends, 0, shared.kind == 'p' and 1023 or 15, 'WITHSCORES')
    free = tonumber(ids[2])
    for i = 1, #ids, 2 do
      local text = call('HGET', shared.texts, ids[i])
      local hold = text and unpack_hold(text, tonumber(ids[i + 1]))
      if hold and (not shown or (is_resting(shown) and not is_resting(hold))) then shown = hold end
      if hold and hold.slot ~= '-' then taken[#taken + 1] = hold.slot end
    end
  end
  local rank = call('ZRANK', queue.places, claim.id)
  local answer = {
    'B', digits(counter(record.key)), queue.count, rank and rank + 1 or 0,
    free < 0 and -1 or digits(free >= NEVER and 86400000 or max(free - t, 0)), concat(taken, ','),
  }
  if shown then
    answer[7], answer[8] = digits(shown.number), max(floor((now - shown.granted) / 1000), 0)
    answer[9], answer[10], answer[11] = is_resting(shown) and 1 or 0, shown.id, shown.label
  end
  return answer
end

local KIND_OF = { m = 'm', w = 'r', r = 'r', p = 'p' }
local function conflict(record, claim)
  local kind, capacity
  if record.own and record.own.id ~= FOREIGN then
    kind = KIND_OF[record.own.flag:lower()]
    capacity = kind == 'm' and 1 or 1048576
  elseif record.own then
    -- A client of the classic protocol knows mutexes only.
    kind, capacity = 'm', 1
    if claim.kind == 'r' or claim.kind == 'w' then return nil end
  elseif record.shared.count > 0 then
    kind, capacity = record.shared.kind, record.shared.capacity
  end
  if kind and (kind ~= KIND_OF[claim.kind] or capacity ~= claim.capacity) then return { 'C', kind, capacity } end
end

local function grant(record, queue, claim)
  local number = max(counter(record.key) + 1, claim.floor + 1)
  -- A client whose clock is very wrong does not spoil the numbers.
  if claim.proposal <= now + AHEAD_MAX then number = max(number, claim.proposal) end
  if number >= NUMBER_MAX then return { 'T' } end
  raise(record.key, number)
  claim.flag, claim.number, claim.granted = claim.kind, number, now
  extend(claim)
  put(record, claim)
  if not is_exclusive(claim) then
    call('HSET', record.shared.texts, 'k', KIND_OF[claim.kind] .. ' ' .. digits(claim.capacity))
    record.shared.kind = KIND_OF[claim.kind]
  end
  if leave(queue, claim.id) and claim.kind == 'p' then wake(record, queue) end
  changed(record.key)
  return number
end

local function decide(key, id, asked, terms, ticket)
  if is_finished(id) then return { 'F' } end
  local claim = unpack_terms({ id = id, kind = asked.kind, capacity = asked.capacity }, terms)
  claim.floor, claim.proposal, claim.ticket = asked.floor, asked.proposal, ticket
  local record = holds_of(key)
  local hold = hold_of(record, id)
  if hold and claim.attempt > hold.attempt and claim.slot ~= hold.slot then
    -- Of an earlier attempt, which came to nothing. Were it a vote for this one, no majority would keep others out of the slot.
    end_hold(record, hold, 0)
    wake(record, queue_of(key))
    hold = nil
  end
  if hold then
    -- Granted before, and its answer was lost: it is the same grant. A copy of an earlier attempt may be the later to arrive: what ends that
    -- attempt does not end this hold.
    hold.attempt = max(hold.attempt, claim.attempt)
    extend(hold)
    put(record, hold)
    -- With how long it is kept: a longest time counts from the grant, not from this copy.
    return { 'G', digits(hold.number), hold.slot, digits(max(hold.ends - t, 0)) }
  end
  local against = conflict(record, claim)
  if against then return against end
  if claim.floor > now + AHEAD_MAX and not asked.is_forced then return { 'A', digits(now) } end
  if asked.fresh == '1' then
    local value = call('HMGET', beside('V', key), 'fresh', 'token', 'bytes', 'keep')
    local fresh, keep = tonumber(value[1] or nil), tonumber(value[4] or nil)
    if fresh and keep and fresh > t and value[2] and value[3] then return { 'V', digits(fresh - t), value[2], value[3], digits(max(keep - t, 0)) } end
  end
  local queue = queue_of(key)
  prune(queue)
  if is_free(record, claim) and not is_behind(queue, id, ticket, claim.kind) then return grant(record, queue, claim) end
  if asked.waits then
    enqueue(queue, id, digits(ticket), asked.life, concat({ claim.kind, asked.fresh, claim.client, claim.label }, ' '))
    changed(key)
  end
  return busy(record, queue, claim)
end

-- What is beside the keys from one to another.
local function all_beside(letters, KEYS, first, last)
  local keys, n = {}, 0
  for at = first, last do
    for i = 1, #letters do
      n = n + 1
      keys[n] = 'tenure.1.' .. letters[i] .. ':' .. KEYS[at]
    end
  end
  return keys
end
local WHO_ELSE, COUNTER, LEFT = { 'H', 'Q' }, { 'C' }, { 'Q', 'V' }

-- The common case: mutexes without anything special (a life, or 0), which are free and nobody waits for. Each is taken by one command; the
-- others are left out of the answers.
--
-- A counter of its own is written only where there is one, or where it would not be the proposal: else the largest of all, which is
-- written before anything is granted, is what the next claim is told, and servers that agree go on to do so.
local function take_free(KEYS, first, last, ids, asked, terms, answers)
  local others = call('EXISTS', unpack(all_beside(WHO_ELSE, KEYS, first, last)))
  local places = all_beside(COUNTER, KEYS, first, last)
  local counters = call('MGET', unpack(places))
  local least, before, numbers, largest = asked.floor + 1, top, {}, top
  -- A client whose clock is very wrong does not spoil the numbers.
  if asked.proposal <= now + AHEAD_MAX then least = max(least, asked.proposal) end
  for i = 1, last - first + 1 do
    local number = max(least, max(number_in(counters[i]) or before, base) + 1)
    numbers[i], largest = number, max(largest, number)
  end
  if largest >= NUMBER_MAX then return end
  if largest > top then
    top, is_top_new = largest, true
    keep_top()
  end
  local ends, granted, tail, tail_number = digits(t + asked.plain_life - 1), ' ' .. padded(now) .. ' ' .. terms, nil, nil
  for at = first, last do
    local i, key, id = at - first + 1, KEYS[at], id_at(ids, at - 4)
    local is_alone = others == 0 or call('EXISTS', beside('H', key), beside('Q', key)) == 0
    if is_alone and not is_finished(id) then
      local number = numbers[i]
      if number ~= tail_number then tail, tail_number = ' m ' .. padded(number) .. granted, number end
      if call('SET', key, id .. tail, 'NX', 'PXAT', ends) then
        if counters[i] or before >= least then call('SET', places[i], digits(number), 'PX', COUNTER_MEMORY) end
        changed(key)
        answers[at - 3] = number
      end
    end
  end
end

local CLAIM = '^(%a) (%d+) (%d) (%d) (%d) (%d+) (%d+) (%d+) (%d) (%d+) (%d+)$'

-- Takes for each run "kind capacity wait fresh forced floor proposal ticket step life plain_life", and the terms. Each claim's ticket is
-- a step after that of the one before.
operation('claim', {}, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  keep_base(ARGV[1])
  local answers, ids, at, run = { padded(now) }, ARGV[2], 4, 3
  while at < #KEYS do
    local first, last, terms = at + 1, at + ARGV[run], ARGV[run + 2]
    local kind, capacity, wait, fresh, forced, above, proposal, ticket, step, life, plain_life = ARGV[run + 1]:match(CLAIM)
    local asked = {
      kind = kind, capacity = tonumber(capacity), waits = wait == '1', fresh = fresh, is_forced = forced == '1', floor = tonumber(above),
      proposal = tonumber(proposal), life = tonumber(life), plain_life = tonumber(plain_life),
    }
    if asked.plain_life > 0 and asked.floor <= now + AHEAD_MAX then take_free(KEYS, first, last, ids, asked, terms, answers) end
    for place = first, last do
      if not answers[place - 3] then
        answers[place - 3] = apart(decide, KEYS[place], id_at(ids, place - 4), asked, terms, ticket + (place - first) * step)
      end
    end
    at, run = last, run + 3
  end
  return done(answers)
end)

local function stamp(key, id, token)
  local record = holds_of(key)
  local hold = hold_of(record, id)
  if not hold or token >= NUMBER_MAX then return 0 end
  if hold.number < token then
    -- A mutex or a writer has the last number that was given here.
    local known = counter(key, record.own and hold.number)
    -- Another one that shares it may have been granted that number since: each has its own.
    hold.number = known < token and token or known + 1
    raise(key, hold.number)
    put(record, hold)
  end
  return { digits(hold.number), digits(max(hold.ends - t, 0)) }
end

-- Takes for each run a token: the counter is to be at the token while the claim holds. Answers with the token, or
-- with a larger number, which the claim must take, and for how long it is held; 0: it does not hold here.
operation('stamp', {}, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  keep_base(ARGV[1])
  local answers, ids, at, run = { padded(now) }, ARGV[2], 4, 3
  while at < #KEYS do
    local token, last = tonumber(ARGV[run + 1]), at + ARGV[run]
    for place = at + 1, last do answers[place - 3] = apart(stamp, KEYS[place], id_at(ids, place - 4), token) end
    at, run = last, run + 2
  end
  return done(answers)
end)

-- Whether a hold as it is stored is that of a claim, still holds, and has nothing special: no longest or shortest time, no rest.
local MUTEX = 109
local function is_plain(held, id)
  return held and sub(held, 1, 32) == id and byte(held, 34) == MUTEX and sub(held, 95, 101) == ' 0 0 0 '
end

local function renew(key, id)
  local record = holds_of(key)
  local hold = hold_of(record, id)
  if not hold then return 0 end
  extend(hold)
  put(record, hold)
  local value = call('HMGET', beside('V', key), 'claim', 'keep')
  if value[1] == hold.id and value[2] == '' then call('PEXPIREAT', beside('V', key), hold.ends) end
  return hold.ends - t
end

-- Answers for how long each hold lives on; 0: it does not hold here.
operation('renew', { 'allow-oom' }, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  insist()
  local answers, ids = { padded(now) }, ARGV[2]
  local holds = call('MGET', unpack(KEYS, 5))
  local has_values = call('EXISTS', unpack(all_beside({ 'V' }, KEYS, 5, #KEYS))) > 0
  for at = 5, #KEYS do
    local key, id, held = KEYS[at], id_at(ids, at - 4), holds[at - 4]
    local life = not has_values and is_plain(held, id) and tonumber(sub(held, 70, 77))
    -- The common case: only the end is new. Not if that is earlier than it was, as after the clock was set back.
    if life and call('PEXPIREAT', key, digits(t + life - 1), 'GT') == 1 then
      answers[at - 3] = life
    else
      answers[at - 3] = apart(renew, key, id)
    end
  end
  return done(answers)
end)

-- The common case: mutexes without anything special, for which nobody waits. They go by one command; the others are left out
-- of the answers.
local function let_go(KEYS, first, last, ids, answers)
  local holds = call('MGET', unpack(KEYS, first, last))
  local left = call('EXISTS', unpack(all_beside(LEFT, KEYS, first, last)))
  local gone, n = {}, 0
  for at = first, last do
    local key = KEYS[at]
    local is_alone = left == 0 or call('EXISTS', beside('Q', key), beside('V', key)) == 0
    if is_alone and is_plain(holds[at - first + 1], id_at(ids, at - 4)) then
      n = n + 1
      gone[n], answers[at - 3] = key, 1
      changed(key)
    end
  end
  if n > 0 then call('DEL', unpack(gone)) end
end

local function finish_with(key, id, mode, attempt, unused, ticket, life, waiter)
  local answer, record, queue = 0, holds_of(key), queue_of(key)
  local hold = mode ~= 'u' and hold_of(record, id)
  -- What a later attempt was granted is not given back by an earlier one.
  if hold and (mode == 'r' or hold.attempt <= tonumber(attempt)) then
    local rest = unused == '1' and 0 or hold.min
    end_hold(record, hold, floor(min(hold.granted, now) / 1000) + rest)
    answer = 1
  end
  if mode == 'b' then
    if not hold and not is_finished(id) or answer == 1 then enqueue(queue, id, ticket, tonumber(life), waiter) end
  elseif mode ~= 'c' and leave(queue, id) then
    answer = 1
  end
  if answer == 1 then
    wake(record, queue)
    changed(key)
  end
  return answer
end

-- Takes for each run how the claims end: "mode attempt finish unused ticket life waiter". The mode is r: release or withdraw;
-- c: give back what an attempt was granted; b: the same, and wait on; u: do not wait any more. 1: there was something to end.
operation('release', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local answers, ids, at, run = { padded(now) }, ARGV[2], 4, 3
  while at < #KEYS do
    local first, last = at + 1, at + ARGV[run]
    local mode, attempt, is_finish, unused, ticket, life, waiter = ARGV[run + 1]:match('^(%a) (%d+) (%d) (%d) (%d+) (%d+) (.*)$')
    if mode == 'r' then let_go(KEYS, first, last, ids, answers) end
    for place = first, last do
      local id = id_at(ids, place - 4)
      if not answers[place - 3] then
        answers[place - 3] = apart(finish_with, KEYS[place], id, mode, attempt, unused, ticket, life, waiter)
      end
      if is_finish == '1' then finish(id) end
    end
    at, run = last, run + 2
  end
  return done(answers)
end)

-- When what the client counts from was, by this server's clock in ms as the client knows it. What a server carries out late, since it hung, ends
-- there no later than elsewhere.
local function since(then_t) return min(t, tonumber(then_t) or 0) end

-- Takes an id, the token, "fresh keep" in ms (empty: as long as the hold), bytes, and since when. 1: it is set; 0: it does not hold here; -1: it
-- has ended already.
operation('publish', {}, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  local key, id, fresh, keep = KEYS[5], ARGV[2], ARGV[4], ARGV[5]
  local record = holds_of(key)
  local hold = hold_of(record, id)
  if not hold then return { digits(now), 0 } end
  local value, fresh_until, keep_until = beside('V', key), t, ''
  -- What is gone is so by any clock, one that is set back as well.
  if keep == '0' then fresh_until, keep_until = 0, '0'
  elseif keep ~= '' then
    local from = since(ARGV[7])
    if from + keep <= t then return { digits(now), -1 } end
    fresh_until, keep_until = from + fresh, digits(from + keep)
  end
  call('DEL', value)
  call('HSET', value, 'bytes', ARGV[6], 'token', ARGV[3], 'claim', id, 'fresh', digits(fresh_until), 'keep', keep_until)
  -- What is gone leaves its token for a while: an older value that somebody has just read would be written back.
  call('PEXPIREAT', value, keep == '0' and digits(t + GONE_FOR) or keep ~= '' and keep_until or hold.ends)
  if fresh_until > t then
    local queue = queue_of(key)
    each_waiter(queue, TOLD_MAX, function(waiter, _, text)
      local is_fresh, client = text:match('^%a (%d) (%x+)')
      if is_fresh == '1' then call('PUBLISH', INBOX .. client, 'L ' .. waiter) end
    end)
  end
  changed(key)
  return { digits(now), 1 }
end)

-- Writes a value that a majority may lack: token, "fresh" and "keep" in ms, bytes, and since when. An older one gives way. 1: it is written; 0:
-- it is there; 2: a newer one is there, or was and is gone; -1: it has ended already.
operation('mend', {}, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  local value = beside('V', KEYS[5])
  local there = tonumber(call('HGET', value, 'token') or 0)
  if there >= tonumber(ARGV[2]) then return { digits(now), there > tonumber(ARGV[2]) and 2 or 0 } end
  local from = since(ARGV[6])
  if from + ARGV[4] <= t then return { digits(now), -1 } end
  call('DEL', value)
  call('HSET', value, 'bytes', ARGV[5], 'token', ARGV[2], 'claim', '', 'fresh', digits(from + ARGV[3]), 'keep', digits(from + ARGV[4]))
  call('PEXPIREAT', value, digits(from + ARGV[4]))
  return { digits(now), 1 }
end)

-- Takes the id of a hold, and whether it ends at once. Answers when its units come free, in ms; -1: it does not hold here.
operation('break', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local key, id, free_in = KEYS[5], ARGV[2], -1
  local record = holds_of(key)
  local hold = record.own and record.own.id == id and record.own
  if not hold and not record.own and record.shared.count > 0 then hold = shared_hold(record.shared, id) end
  if id ~= FOREIGN then finish(id) end
  if hold then
    if ARGV[3] == '1' then
      drop_value(key, hold)
      remove(record, hold)
      free_in = 0
    else
      if not is_resting(hold) and hold.id ~= FOREIGN then end_hold(record, hold, hold.ends) end
      free_in = max(hold.free - t, 0)
    end
    wake(record, queue_of(key))
    changed(key)
  end
  return { digits(now), free_in }
end)

local function show(key)
  local kind, capacity, holds, waiters = 'm', 1, {}, {}
  local function add(hold)
    if hold.free > t then
      holds[#holds + 1] = pack(hold)
      holds[#holds + 1] = digits(hold.free >= NEVER and 86400000 or hold.free - t)
    end
  end
  local own = exclusive(key)
  if own then
    if upper(own.flag) == 'W' then kind, capacity = 'r', 1048576 end
    add(own)
  else
    local ends, texts = beside('H', key), beside('T', key)
    local ids = call('ZRANGE', ends, 0, 1023, 'WITHSCORES')
    local of_kind, of_capacity = ((ids[1] and call('HGET', texts, 'k')) or ''):match('^([rp]) (%d+)$')
    if of_kind then kind, capacity = of_kind, of_capacity end
    for at = 1, #ids, 2 do
      local text = call('HGET', texts, ids[at])
      if text then add(unpack_hold(text, tonumber(ids[at + 1]))) end
    end
  end
  local queue = queue_of(key)
  each_waiter(queue, 1024, function(id, place, text)
    if tonumber(call('ZSCORE', queue.lives, id) or 0) > t then
      waiters[#waiters + 1], waiters[#waiters + 2], waiters[#waiters + 3] = id, digits(place), text
    end
  end)
  if #holds == 0 and waiters[3] then kind = KIND_OF[sub(waiters[3], 1, 1)] or kind end
  local value = call('HMGET', beside('V', key), 'bytes', 'token', 'claim', 'fresh', 'keep')
  if value[1] and number_in(value[2]) and value[3] and tonumber(value[4] or nil) and value[5] then
    value[4] = digits(max(value[4] - t, 0))
    value[5] = value[5] == '' and '-' or digits(max((tonumber(value[5]) or t) - t, 0))
  else
    value = {}
  end
  return { kind, tonumber(capacity), holds, waiters, digits(counter(key)), value }
end

-- Shows resources: kind, capacity, holds (text and how much longer), waiters (id, ticket and text), counter, value.
operation('look', { 'no-writes' }, function(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return { padded(now), 'Q' } end
  local answers = { padded(now) }
  for i = 5, #KEYS do answers[i - 3] = apart(show, KEYS[i]) end
  return answers
end)

-- Notes that somebody follows a resource, for so many ms from now; each change is published from then on.
operation('observe', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  call('ZREMRANGEBYSCORE', OBSERVED, '-inf', t)
  call('ZADD', OBSERVED, t + ARGV[2], KEYS[5])
  call('PEXPIRE', OBSERVED, ARGV[2])
  return { digits(now) }
end)

-- Of a marker: the incarnation, and the longest ttl.
local function parts(marker) return (marker or ''):match('^(%d+) (%d+)$') end

-- Whether the server counts, and if not, what is to be done: R(eady), if the longest ttl is another one than the client takes it for, too; W(ait)
-- for so many ms; L(earn) what it has forgotten. Then the largest number, and the longest ttl. A server that has started anew is seen by
-- this, and waits from then on.
operation('settle', {}, function(KEYS, ARGV)
  local _, marker = begin(KEYS, ARGV)
  local run, longest = parts(marker)
  local present = parts(ARGV[1])
  if run == present and has_top then return { padded(now), 'R', 0, padded(top), longest } end
  if call('GET', SEEN) ~= present then
    call('SET', WAIT, present, 'PX', ARGV[2])
    call('SET', SEEN, present)
  end
  local left = call('PTTL', WAIT)
  if left > 0 then return { padded(now), 'W', left, padded(top), 0 } end
  return { padded(now), 'L', 0, padded(top), 0 }
end)

-- Looks whether the server counts, and writes nothing: 1 or 0, the largest number, and the longest ttl.
operation('mark', { 'no-writes' }, function(KEYS, ARGV)
  local _, marker = begin(KEYS, ARGV)
  local run, longest = parts(marker)
  local counts = has_top and run ~= nil and run == parts(ARGV[1])
  return { padded(now), counts and 1 or 0, padded(top), counts and longest or 0 }
end)

-- Lets the server count from now on, with numbers above what others have given, and with this longest ttl. Unless told to do so by an
-- operator (1), only if it has waited.
operation('admit', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local present = parts(ARGV[1])
  if ARGV[4] ~= '1' and (call('GET', SEEN) ~= present or call('EXISTS', WAIT) == 1) then return { padded(now), 0 } end
  top, is_top_new = max(top, tonumber(ARGV[2])), true
  keep_top()
  local marker = present .. ' ' .. ARGV[3]
  base, is_base_lost = top, true
  keep_base(marker)
  call('SET', BOOT, marker)
  call('DEL', SEEN, WAIT)
  return { padded(now), 1 }
end)
