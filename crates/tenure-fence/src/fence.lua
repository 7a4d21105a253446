-- The rule of tenure's fencing tokens, for your own script.
--
-- tenure_fence(key, token, claim, access) returns false if the access is accepted, and has kept its mark then;
-- else the largest token that was seen, as text, and has changed nothing. `access` is 'write' or 'read'.
-- The key holds '1 WRITE READ': the marks of the largest accepted write and read, each token/claim. It is not
-- given an expiry, and keeps one that it has.
local function tenure_fence(key, token, claim, access)
  -- Lua's numbers are exact to 2^53 only: tokens stay text, and are compared in two halves of ten digits.
  local function halves(text)
    local digits = string.rep('0', 20 - #text) .. text
    return tonumber(string.sub(digits, 1, 10)), tonumber(string.sub(digits, 11))
  end
  local function is_larger(one, other)
    local high, low = halves(one)
    local other_high, other_low = halves(other)
    return high > other_high or (high == other_high and low > other_low)
  end
  local is_token = string.find(token, '^[1-9]%d*$') and #token <= 20
  if not is_token or is_larger(token, '18446744073709551615') then
    error({err = 'ERR tenure fence: not a token'})
  end
  if #claim ~= 32 or string.find(claim, '[^0-9a-f]') then
    error({err = 'ERR tenure fence: not a claim id'})
  end
  local none = '0/' .. string.rep('0', 32)
  local format, write, read = '1', none, none
  local kept = redis.call('GET', key)
  if kept then
    format, write, read = string.match(kept, '^(%d+) (%d+/%x+) (%d+/%x+)$')
    if format ~= '1' then
      error({err = 'ERR tenure fence: the key holds no fence of format 1'})
    end
  end
  local mark = token .. '/' .. claim
  local write_token, read_token = string.match(write, '^%d+'), string.match(read, '^%d+')
  local is_current = mark == write or is_larger(token, write_token)
  if access == 'write' then
    is_current = is_current and (mark == read or is_larger(token, read_token))
  elseif access ~= 'read' then
    error({err = 'ERR tenure fence: an access is write or read'})
  end
  if not is_current then
    return is_larger(read_token, write_token) and read_token or write_token
  end
  if access == 'write' then
    write = mark
  elseif is_larger(token, read_token) then
    read = mark
  end
  redis.call('SET', key, '1 ' .. write .. ' ' .. read, 'KEEPTTL')
  return false
end
