package transcode

import "strings"

// A Path leads to one text inside a message.
type Path struct{ numbers []int }

// Path finds the text that a dotted name like spec.nodeName means; false when
// there is none of that name, or it is no single text.
func (p *Plan) Path(name string) (Path, bool) {
	var path Path
	parts := strings.Split(name, ".")
	for i, part := range parts {
		f, through := p.member(part)
		if f == nil || f.shape != single {
			return Path{}, false
		}
		path.numbers = append(append(path.numbers, through...), f.number)
		switch {
		case i == len(parts)-1 && f.kind == text:
			return path, true
		case f.kind != message:
			return Path{}, false
		}
		p = f.of
	}
	return Path{}, false
}

// member is the field of a JSON name, and the inline messages it is in.
func (p *Plan) member(name string) (*field, []int) {
	for i := range p.fields {
		f := &p.fields[i]
		if f.shape == inline {
			if found, through := f.of.member(name); found != nil {
				return found, append([]int{f.number}, through...)
			}
		} else if f.name == `"`+name+`":` && f.number > 0 {
			return f, nil
		}
	}
	return nil, nil
}

// Find is the text in msg, nil when it is not there. ErrUnusual is as for
// Append.
func (p Path) Find(msg []byte) ([]byte, error) {
	for i, number := range p.numbers {
		var body []byte
		count := 0
		for pos := 0; pos < len(msg); {
			n, f, end, err := next(msg, pos)
			if err != nil {
				return nil, err
			}
			if n == number {
				if f.wire != 2 {
					return nil, ErrUnusual
				}
				body = f.body
				count++
			}
			pos = end
		}
		if count == 0 {
			return nil, nil
		}
		if count > 1 && i < len(p.numbers)-1 {
			return nil, ErrUnusual // messages merge
		}
		msg = body
	}
	return msg, nil
}
