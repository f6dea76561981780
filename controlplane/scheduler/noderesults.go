package scheduler

import (
	"crypto/sha256"

	"knarr/controlplane/scheduler/framework"
)

// nodeResults are the local plugins' results for every node and for pods alike to
// them. They are brought up to date by asking again only about nodes that changed.
type nodeResults struct {
	position uint64
	status   []*framework.Status
	// plain is the weighted sum of the scores that need no normalizing; scores
	// are the others, by plugin.
	plain       []int64
	scores      [][]int64
	asked       []uint64 // to ask once about a node that changed twice
	round       uint64
	reasonBytes int // bytes of the reasons
}

type localKey = [sha256.Size]byte

// maxNodeResults bounds, together, the nodes of all remembered answers.
const maxNodeResults = 1 << 20

// maxReasonBytes bounds the bytes of their reasons: more than pods need that ask for a
// few resources each.
const maxReasonBytes = 128 * maxNodeResults

// local gives the answers about the pod's shape as of now.
func (s *core) local(p *framework.Pod) *nodeResults {
	a := s.upToDate(p)
	for s.reasonBytes > s.mostReasonBytes && s.results[s.answered[0]] != a {
		s.forgetOldest()
	}
	return a
}

func (s *core) upToDate(p *framework.Pod) *nodeResults {
	a, ok := s.results[p.Local]
	if !ok {
		a = &nodeResults{scores: make([][]int64, len(s.scorers))}
		s.remember(p.Local, a)
	} else if len(a.status) == len(s.cluster.Nodes) {
		a.round++
		now, known := s.cluster.Changes(a.position, func(slot int) {
			if a.asked[slot] != a.round {
				a.asked[slot] = a.round
				s.ask(a, p, slot)
			}
		})
		if a.position = now; known {
			return a
		}
	}
	n := len(s.cluster.Nodes)
	if len(a.status) != n {
		s.reasonBytes -= a.reasonBytes
		a.reasonBytes = 0
		a.status, a.plain, a.asked = make([]*framework.Status, n), make([]int64, n), make([]uint64, n)
		for i, sc := range s.scorers {
			if sc.local && sc.normalizer != nil {
				a.scores[i] = make([]int64, n)
			}
		}
	}
	for slot := range n {
		s.ask(a, p, slot)
	}
	a.position = s.cluster.Now()
	return a
}

// ask asks the local plugins about one node.
func (s *core) ask(a *nodeResults, p *framework.Pod, slot int) {
	before := size(a.status[slot])
	s.askAgain(a, p, slot)
	grown := size(a.status[slot]) - before
	a.reasonBytes += grown
	s.reasonBytes += grown
}

// size is about how much memory a status's reasons take.
func size(st *framework.Status) (n int) {
	if st != nil {
		for _, r := range st.Reasons {
			n += 16 + len(r)
		}
	}
	return n
}

func (s *core) askAgain(a *nodeResults, p *framework.Pod, slot int) {
	a.status[slot] = nil
	n := s.cluster.Nodes[slot]
	if n == nil || n.Object == nil {
		return
	}
	s.cycle.choose(slot)
	for i := range s.filters {
		if f := &s.filters[i]; f.local && !f.skip {
			if st := s.filter(f, p, n); st != nil {
				a.status[slot] = st
				return
			}
		}
	}
	a.plain[slot] = 0
	for i := range s.scorers {
		sc := &s.scorers[i]
		switch {
		case !sc.local:
		case sc.normalizer == nil:
			if sc.pre == nil || !sc.pre.PreScore(p, nil) {
				a.plain[slot] += sc.weight * s.score(sc, p, n)
			}
		default:
			a.scores[i][slot] = s.score(sc, p, n)
		}
	}
}

// remember keeps new answers, and drops the oldest when there are too many.
func (s *core) remember(key localKey, a *nodeResults) {
	most := max(16, maxNodeResults/max(1, len(s.cluster.Nodes)))
	for len(s.answered) >= most {
		s.forgetOldest()
	}
	s.results[key] = a
	s.answered = append(s.answered, key)
}

func (s *core) forgetOldest() {
	s.reasonBytes -= s.results[s.answered[0]].reasonBytes
	delete(s.results, s.answered[0])
	s.answered = s.answered[1:]
}
