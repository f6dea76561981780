package eviction

import (
	"slices"
	"time"
)

// An Observation is what there was of a signal when it was looked at.
type Observation struct{ Available, All int64 }

// Conditions are what a node is short of.
type Conditions struct{ Memory, Disk, PIDs bool }

// A State remembers which thresholds were met, and since when.
type State struct {
	// Transition is how long a condition stays after its thresholds are met no more.
	Transition time.Duration

	unresolved map[Threshold]bool
	since      map[Threshold]time.Time
	last       map[condition]time.Time
}

type condition int

const (
	memory condition = iota
	disk
	pids
)

func (t Threshold) condition() condition {
	switch t.Signal {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return memory
	case PIDAvailable:
		return pids
	}
	return disk
}

// met says whether a threshold is met; one that was met before stays so until as much
// is there as must be reclaimed.
func (s *State) met(t Threshold, o Observation) bool {
	limit := t.Value.Of(o.All)
	if s.unresolved[t] {
		limit += t.Reclaim.Of(o.All)
	}
	return o.Available < limit
}

// Step looks at what was observed. Met are the thresholds for which pods have to go now,
// the most urgent first; what was not observed is left out of it.
func (s *State) Step(now time.Time, all []Threshold, observed map[string]Observation) (conditions Conditions, met []Threshold) {
	since, unresolved := map[Threshold]time.Time{}, map[Threshold]bool{}
	if s.last == nil {
		s.last = map[condition]time.Time{}
	}
	for _, t := range all {
		o, known := observed[t.Signal]
		if !known || o.All == 0 || !s.met(t, o) {
			continue
		}
		first, before := s.since[t]
		if !before {
			first = now
		}
		since[t] = first
		s.last[t.condition()] = now
		if now.Sub(first) >= t.Grace {
			unresolved[t] = true
			met = append(met, t)
		}
	}
	s.since, s.unresolved = since, unresolved
	within := func(c condition) bool {
		last, ok := s.last[c]
		return ok && now.Sub(last) < s.Transition
	}
	slices.SortStableFunc(met, func(a, b Threshold) int { return int(a.condition()) - int(b.condition()) })
	return Conditions{within(memory), within(disk), within(pids)}, met
}
