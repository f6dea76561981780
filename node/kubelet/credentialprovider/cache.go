package credentialprovider

import "time"

// A cache remembers things until they expire, at most so many. Its owner locks it.
type cache struct {
	most int
	all  map[string]cached
}

type cached struct {
	value   any
	expires time.Time
}

func (c *cache) get(key string, now time.Time) (any, bool) {
	v, ok := c.all[key]
	if !ok || now.After(v.expires) {
		return nil, false
	}
	return v.value, true
}

// put remembers a value. Where there is no room, what has expired goes, or else what
// would expire first.
func (c *cache) put(key string, value any, expires, now time.Time) {
	if c.all == nil {
		c.all = map[string]cached{}
	}
	if _, ok := c.all[key]; !ok && len(c.all) >= c.most {
		first := ""
		for k, v := range c.all {
			if now.After(v.expires) {
				delete(c.all, k)
			} else if first == "" || v.expires.Before(c.all[first].expires) {
				first = k
			}
		}
		if len(c.all) >= c.most {
			delete(c.all, first)
		}
	}
	c.all[key] = cached{value, expires}
}
