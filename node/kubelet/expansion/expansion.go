// Package expansion replaces $(NAME) in what pods say of their containers. It
// reads and writes nothing.
package expansion

import (
	"errors"
	"strings"
)

// ErrTooLarge is the error for a result that no process could be given.
var ErrTooLarge = errors.New("the container's command and environment are too large")

// A Budget is how many bytes may still be made. Variables that name variables
// double with each step, so that a small pod could ask for any amount.
type Budget int

// Container is the budget of one container: more than the 6 MiB that the
// kernel lets arguments and environment of a process be.
const Container Budget = 8 << 20

// Take takes n bytes off the budget.
func (b *Budget) Take(n int) error {
	if n > int(*b) {
		return ErrTooLarge
	}
	*b -= Budget(n)
	return nil
}

// Expand replaces $(NAME); $$ is a dollar, unknown names stay as written. What
// it makes is taken off the budget.
func Expand(s string, lookup func(string) (string, bool), left *Budget) (string, error) {
	if !strings.Contains(s, "$") {
		return s, left.Take(len(s))
	}
	var b strings.Builder
	most := int(*left)
	last := strings.LastIndexByte(s, ')') // not looked for again at each opening
	for i := 0; i < len(s); i++ {
		if b.Len() > most {
			break
		}
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			if last < i+2 {
				b.WriteString("$(")
				i++
				continue
			}
			end := strings.IndexByte(s[i+2:], ')')
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	if err := left.Take(b.Len()); err != nil {
		return "", err
	}
	return b.String(), nil
}
