-- Records the response. ARGV[4] number and token, ARGV[5] retention, ARGV[6] the response.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
local now = now_of(value)
if not now then return {2} end
if not is_record(value) then return {0, value, now} end
local _, _, lease_end, claimed, _, expiry = struct.unpack('>i8i8i8i8i8i8', value, 29)
local owner = string.sub(value, 5, 8) .. string.sub(value, 13, 28)
if string.sub(value, 3, 3) ~= 'p' or owner ~= ARGV[4] or now >= expiry then return {0, value, now} end
expiry = math.max(after(now, ARGV[5]), lease_end)
local ttl = time_to_live(now, expiry)
local fingerprint = struct.unpack('>I4', value, 77)
local done = string.sub(value, 1, 2) .. 'd' .. string.sub(value, 4, 28)
  .. struct.pack('>i8i8i8i8i8i8', now, ttl, lease_end, claimed, now, expiry)
  .. string.sub(value, 77, 80 + fingerprint) .. ARGV[6]
say_ended()
redis.call('SET', KEYS[1], done, 'PX', string.format('%.0f', ttl))
return {1}
