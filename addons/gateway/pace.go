package gateway

import "time"

const (
	// gather is how long a change waits for others, so that a burst of them is one compilation.
	gather = 3 * time.Millisecond
	// restFactor is how many times as long as the last compilation took nothing is compiled, and
	// maxRest the longest time: whoever makes compilations long makes them rare, and changes
	// of endpoints, which need none, are told meanwhile.
	restFactor, maxRest = 5, time.Second
)

// A pace keeps what compilations take of a processor to a part of it.
type pace struct {
	next time.Time
}

// wait is how long the next compilation is to wait; 0 if it may begin.
func (p *pace) wait(now time.Time) time.Duration { return max(p.next.Sub(now), 0) }

// took notes how long one took that has ended now.
func (p *pace) took(d time.Duration, now time.Time) { p.next = now.Add(min(restFactor*d, maxRest)) }
