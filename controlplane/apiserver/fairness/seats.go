package fairness

import (
	"maps"
	"slices"
)

// seats are those of all levels together. Each level has its least for itself;
// the others are free for all, up to what each may use, so that what one lends
// the others borrow.
type seats struct {
	free     int // beyond the least of all levels; negative after a cut
	levels   []*level
	draining []*level // gone, with somebody still in them
}

// reset counts anew for other levels.
func (s *seats) reset(levels map[string]*level, total int) {
	s.levels = slices.DeleteFunc(slices.Collect(maps.Values(levels)), func(l *level) bool { return l.exempt })
	nominal, used := 0, 0
	for _, l := range s.levels {
		nominal += l.nominal
		used += max(l.executing, l.least)
	}
	for _, l := range s.draining {
		used += max(0, l.executing-l.least)
	}
	s.free = max(total, nominal) - used // shares are rounded up
}

// fits says that a level can have w seats more. One that is at rest gets going
// however many it asks for.
func (s *seats) fits(l *level, w int) bool {
	if l.executing == 0 && w > 1 {
		w = 1
	}
	return l.executing+w <= l.most && l.beyond(l.executing+w)-l.beyond(l.executing) <= max(s.free, 0)
}

// beyond is how many of n seats are not of the level's least.
func (l *level) beyond(n int) int { return max(0, n-l.least) }

// take gives a newcomer w seats, if nobody of its level waits for one.
func (s *seats) take(l *level, w int) bool {
	if l.waiting() || !s.fits(l, w) {
		return false
	}
	s.allocate(l, w)
	return true
}

func (s *seats) allocate(l *level, w int) {
	s.free -= l.beyond(l.executing+w) - l.beyond(l.executing)
	l.executing += w
}

func (s *seats) release(l *level, w int) {
	s.free += l.beyond(l.executing) - l.beyond(l.executing-w)
	l.executing -= w
	if l.gone && l.executing == 0 && !l.waiting() {
		s.draining = slices.DeleteFunc(s.draining, func(x *level) bool { return x == l })
	}
}

// dispatch seats those who wait, as far as there is room: first of the level that
// uses least of what is its own.
func (s *seats) dispatch() {
	for {
		var best *level
		for _, list := range [][]*level{s.levels, s.draining} {
			for _, l := range list {
				if l.waiting() && s.fits(l, l.next().width) && (best == nil || l.executing*max(best.nominal, 1) < best.executing*max(l.nominal, 1)) {
					best = l
				}
			}
		}
		if best == nil {
			return
		}
		w := best.first()
		s.allocate(best, w.width)
		w.tally.seats += w.width
		close(w.seated)
	}
}
