package scheduler

import (
	"knarr/controlplane/scheduler/framework"
)

// answers are what the local plugins said of every node about pods alike to
// them. They are brought up to date by asking again only about nodes that changed.
type answers struct {
	position uint64
	verdict  []*framework.Status
	// plain is the weighted sum of the scores that need no normalizing; scores
	// are the others, by plugin.
	plain  []int64
	scores [][]int64
	asked  []uint64 // to ask once about a node that changed twice
	round  uint64
}

// maxAnswers bounds, together, the nodes of all remembered answers.
const maxAnswers = 1 << 20

// local gives the answers about the pod's shape as of now.
func (s *core) local(p *framework.Pod) *answers {
	a, ok := s.answers[p.Local]
	if !ok {
		a = &answers{scores: make([][]int64, len(s.scorers))}
		s.remember(p.Local, a)
	} else if len(a.verdict) == len(s.cluster.Nodes) {
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
	if len(a.verdict) != n {
		a.verdict, a.plain, a.asked = make([]*framework.Status, n), make([]int64, n), make([]uint64, n)
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
func (s *core) ask(a *answers, p *framework.Pod, slot int) {
	a.verdict[slot] = nil
	n := s.cluster.Nodes[slot]
	if n == nil || n.Object == nil {
		return
	}
	for i := range s.filters {
		if f := &s.filters[i]; f.local && !f.skip {
			if st := f.Filter.Filter(p, n); st != nil {
				a.verdict[slot] = st
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
				a.plain[slot] += sc.weight * sc.Score.Score(p, n)
			}
		default:
			a.scores[i][slot] = sc.Score.Score(p, n)
		}
	}
}

// remember keeps new answers, and drops the oldest when there are too many.
func (s *core) remember(key string, a *answers) {
	most := max(16, maxAnswers/max(1, len(s.cluster.Nodes)))
	for len(s.answered) >= most {
		delete(s.answers, s.answered[0])
		s.answered = s.answered[1:]
	}
	s.answers[key] = a
	s.answered = append(s.answered, key)
}
