-- What every operation begins with: its arguments, the time, tokens, and what tells the common case from others.
--
-- The text is loaded once as a library of functions, or sent as a script where functions are not allowed; see
-- `lua.rs`. As a library it outlives a call, so `begin` sets everything anew that belongs to one.
--
-- KEYS: the shared keys (last token, finished ids, queues, observed resources), then the key of each resource.
-- ARGV: the hash tag, the incarnation, PUBLISH or SPUBLISH, then what each operation takes.
--
-- Keys beside that of a resource are made of its key and the tag, so they lie in its slot.
-- Times: `now` in microseconds, for tokens; `t` and all ends in milliseconds, as Redis expires keys.

-- What Lua and the server give. While a library is loaded they are not there yet.
local call, try
local floor, max, min, sub, byte, format, concat
local function open()
  call, try = redis.call, redis.pcall
  floor, max, min = math.floor, math.max, math.min
  sub, byte, format, concat = string.sub, string.byte, string.format, table.concat
end


local CONFIRM_WINDOW_MAX, UNHEARD_WINDOW, WAITER_LIFE_MAX = 5000, 500, 15000
local FINISHED_MEMORY, TOKEN_MEMORY, QUEUE_LIFE = 60000, 3600000, 60000
local WAITERS_MAX, HOLDERS_LOOKED_AT_MAX, FLOOR_AHEAD_MAX = 100000, 16, 3600000000
-- How many dead waiters one request removes, so that no call blocks the server for long. The next one goes on.
local PRUNED_MAX = 64
-- No hold of ours is longer as text; what another client keeps under such a key is not read any further.
local HOLD_BYTES_MAX = 512
-- Up to here a double counts exactly.
local TOKEN_MAX = 9007199254740991
-- Whose hold has ended and rests; and a key that some other client has set.
local REST, FOREIGN = '--------------------------------', '????????????????????????????????'
local NEVER = 9007199254740991

-- What belongs to one call.
local TAG, INCARNATION, PUBLISH
local LAST, FINISHED, QUEUES, OBSERVED
local now, t
-- The last token given under this tag, read when first needed and written once.
local last, is_last_new
-- There is no last token: nothing was granted for an hour, or somebody has deleted it.
local is_last_lost
-- Whether anything is unusual under this tag. If not, the common case of a mutex needs no other key than its own.
local has_finished, has_queues, has_observers, is_all_quiet
-- Who is to be told of what has become of a claim, and which observed resources have changed.
local wakes, changed
-- The claims that this call has confirmed since it granted something to a waiter.
local confirmed

local function begin(KEYS, ARGV)
  if not call then open() end
  TAG, INCARNATION, PUBLISH = ARGV[1], ARGV[2], ARGV[3]
  LAST, FINISHED, QUEUES, OBSERVED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  t = floor(now / 1000)
  last, is_last_new, is_last_lost = nil, false, false
  wakes, changed, confirmed = nil, nil, nil
  has_finished, has_queues, has_observers = false, false, false
  local unusual = call('EXISTS', FINISHED, QUEUES, OBSERVED)
  is_all_quiet = unusual == 0
  if unusual > 0 then
    -- Most often it is the queues alone.
    local queues = call('EXISTS', QUEUES)
    has_queues = queues == 1
    if unusual > queues then
      has_finished = call('EXISTS', FINISHED) == 1
      has_observers = call('EXISTS', OBSERVED) == 1
    end
  end
end

-- A number in full: Lua's own conversion would round 16 digits.
local function digits(number) return format('%.0f', number) end
-- In 16 digits. Halves are integers on every platform, and printing a float of that size takes several times as long.
local HALF = 100000000
local function padded(token)
  local high = floor(token / HALF)
  return format('%08d%08d', high, token - high * HALF)
end

local function last_token()
  if not last then
    last = tonumber(call('GET', LAST) or 0) or 0
    is_last_lost = last == 0
  end
  return last
end
local function next_token(above)
  last = max(last_token() + 1, now, above + 1)
  is_last_new = true
  return last
end

-- The key of who waits for a resource, by their places.
local function queue_of(key) return 'tenure.1.q:' .. TAG .. key end

local function is_quiet(key, id)
  return is_all_quiet or not (has_finished and call('ZSCORE', FINISHED, id))
    and not (has_queues and call('EXISTS', queue_of(key)) == 1)
    and not (has_observers and call('ZSCORE', OBSERVED, key))
end

local function is_finished(id)
  local expiry = has_finished and call('ZSCORE', FINISHED, id)
  return expiry and tonumber(expiry) > t
end

local function finish(id)
  call('ZREMRANGEBYSCORE', FINISHED, '-inf', t)
  call('ZADD', FINISHED, t + FINISHED_MEMORY, id)
  call('PEXPIRE', FINISHED, FINISHED_MEMORY)
  has_finished, is_all_quiet = true, false
end

-- A server that is full refuses what could make it fuller, but not after the first write of a script: then it
-- would be half done. What only keeps or gives back is to go through, so such a script begins with this. A function
-- says so by its flags.
local function insist() if IS_SCRIPT then call('PEXPIRE', LAST, TOKEN_MEMORY) end end

-- Whether a stored hold is that of a claim and has nothing special: `id - …`. Without a new string, for the id is one
-- already.
local DASH = 45
local function is_plain(held, id) return sub(held, 1, 32) == id and byte(held, 34) == DASH end


-- The value of a key: a text, false if there is none, or an error if it is of another type. Of a text that is too long
-- to be ours only the beginning: it is looked at by every heartbeat. A user who may not use GETRANGE reads all of it.
local may_read_range = true
local function text_of(key)
  if may_read_range then
    local text = try('GETRANGE', key, 0, HOLD_BYTES_MAX)
    if type(text) == 'string' then
      if text ~= '' then return text end
    elseif sub(text.err, 1, 9) == 'WRONGTYPE' then
      return text
    else
      may_read_range = false
    end
  end
  return try('GET', key)
end

-- Does what may meet keys that somebody has damaged, so that they fail one request and not all of its call. What the
-- request had done by then nobody knows, and its answer says so. Any other error is the server's own, and comes second.
local function guard(run, ...)
  local is_done, answer = pcall(run, ...)
  if is_done then return answer end
  local text = type(answer) == 'table' and answer.err or answer
  if type(answer) == 'table' and sub(text, 1, 9) ~= 'WRONGTYPE' then return nil, answer end
  return { 'E', tostring(text) }
end
