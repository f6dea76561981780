package framework

// placed finds the shapes of placed pods by their labels.
type placed map[string]map[*Shape]struct{}

func (m placed) add(p *Pod) {
	s := p.Shape
	p.like = len(s.placed)
	if s.placed = append(s.placed, p); p.like > 0 {
		return
	}
	s.eachLabel(func(label string) {
		if m[label] == nil {
			m[label] = map[*Shape]struct{}{}
		}
		m[label][s] = struct{}{}
	})
}

func (m placed) remove(p *Pod) {
	s := p.Shape
	last := len(s.placed) - 1
	s.placed[p.like] = s.placed[last]
	s.placed[p.like].like = p.like
	s.placed[last] = nil
	if s.placed = s.placed[:last]; last > 0 {
		return
	}
	s.eachLabel(func(label string) {
		if delete(m[label], s); len(m[label]) == 0 {
			delete(m, label)
		}
	})
}

// eachLabel calls f for the names of all buckets a shape is in.
func (s *Shape) eachLabel(f func(label string)) {
	f("")
	for k, v := range s.Labels {
		f(k + "=" + v)
	}
}
