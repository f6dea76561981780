package fairness

import (
	"maps"
	"slices"
)

// seats are those of all levels together. Each level has its least for itself;
// the others are free for all, up to what each may use, so that what one lends
// the others borrow.
type seats struct {
	free    int // beyond the least of all levels; negative after a cut
	levels  []*level
	leaving []*level // gone, with somebody still in them
}

// reset counts anew for other levels.
func (s *seats) reset(levels map[string]*level, total int) {
	s.levels = slices.DeleteFunc(slices.Collect(maps.Values(levels)), func(l *level) bool { return l.exempt })
	nominal, used := 0, 0
	for _, l := range s.levels {
		nominal += l.nominal
		used += max(l.executing, l.least)
	}
	for _, l := range s.leaving {
		used += max(0, l.executing-l.least)
	}
	s.free = max(total, nominal) - used // shares are rounded up
}

// may says that a level can have another seat.
func (s *seats) may(l *level) bool {
	return l.executing < l.most && (l.executing < l.least || s.free > 0)
}

// take gives a newcomer a seat, if nobody of its level waits for one.
func (s *seats) take(l *level) bool {
	if l.waiting() || !s.may(l) {
		return false
	}
	s.seat(l)
	return true
}

func (s *seats) seat(l *level) {
	if l.executing >= l.least {
		s.free--
	}
	l.executing++
}

func (s *seats) give(l *level) {
	l.executing--
	if l.executing >= l.least {
		s.free++
	}
	if l.gone && l.executing == 0 && !l.waiting() {
		s.leaving = slices.DeleteFunc(s.leaving, func(x *level) bool { return x == l })
	}
}

// serve seats those who wait, as far as there is room: first of the level that
// uses least of what is its own.
func (s *seats) serve() {
	for {
		var best *level
		for _, list := range [][]*level{s.levels, s.leaving} {
			for _, l := range list {
				if l.waiting() && s.may(l) && (best == nil || l.executing*max(best.nominal, 1) < best.executing*max(l.nominal, 1)) {
					best = l
				}
			}
		}
		if best == nil {
			return
		}
		w := best.first()
		s.seat(best)
		close(w.seated)
	}
}
