-- ARGV[1] is now, where a test has set the clock by hand; else empty. A value is what records.rs says it is.
-- ARGV[2] and ARGV[3] are the channel and the word that say that an attempt has ended; else empty.
local LONG = 86400000 -- for how long a value stays in the server where a test moves the clock
local FOREVER = 4503599627370496

local function is_record(value)
  return #value >= 80 and string.byte(value, 1) == 105 and string.byte(value, 2) == 1
end

-- Nothing if the value has no time to live: nobody can say when it is then, and every lease would seem long over.
local function now_of(value)
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local left = redis.call('PTTL', KEYS[1])
  if not is_record(value) then return 0 end
  if left < 0 then return nil end
  local base, ttl = struct.unpack('>i8i8', value, 29)
  return base + ttl - left
end

local function after(now, duration)
  return math.min(now + tonumber(duration), FOREVER)
end

-- The server shows a value for the millisecond in which nothing is left too, which would be one too many.
local function time_to_live(now, expiry)
  if ARGV[1] ~= '' then return LONG end
  return math.max(1, math.min(expiry - now - 1, FOREVER))
end

local function say_ended()
  if ARGV[2] ~= '' then redis.call('PUBLISH', ARGV[2], ARGV[3]) end
end
