// Package ownership tracks which manager has set which field of an object:
// metadata.managedFields. It reads two states of an object and the entries so
// far, and writes the entries that follow. Results are those of the field
// manager of apimachinery; the way there is one walk over the Go values,
// without an intermediate form of the object.
package ownership

import (
	"encoding/json"
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// A Set is a set of field paths, as a tree of path elements. Elements are
// written as in FieldsV1: f:name, k:{"name":"x"}, v:"x".
type Set struct {
	member   bool // the path up to here is in the set
	children []child
	at       map[string]*Set // children by element while there are many to insert into
}

// few children or items are looked through one by one.
const few = 32

type child struct {
	elem string
	set  *Set
}

// Empty says that no path is in the set.
func (s *Set) Empty() bool { return s == nil || !s.member && len(s.children) == 0 }

func (s *Set) find(elem string) *Set {
	if s.at != nil {
		return s.at[elem]
	}
	for i := range s.children {
		if s.children[i].elem == elem {
			return s.children[i].set
		}
	}
	return nil
}

// insert adds a path. Paths come in the order of a walk, so that the child
// wanted is mostly the last one.
func (s *Set) insert(a *arena, path []string) {
	for _, elem := range path {
		next := (*Set)(nil)
		if n := len(s.children); n > 0 && s.children[n-1].elem == elem {
			next = s.children[n-1].set
		} else if next = s.find(elem); next == nil {
			next = s.grow(a, elem)
		}
		s = next
	}
	s.member = true
}

// grow adds a child.
func (s *Set) grow(a *arena, elem string) *Set {
	next := a.set()
	s.children = a.add(s.children, child{elem, next})
	if s.at != nil {
		s.at[elem] = next
	} else if len(s.children) > few {
		s.at = make(map[string]*Set, 2*len(s.children))
		for _, k := range s.children {
			s.at[k.elem] = k.set
		}
	}
	return next
}

// sort puts all children in order; nothing more is inserted then.
func (s *Set) sort() {
	s.at = nil
	less := func(a, b child) int { return compareElems(a.elem, b.elem) }
	if !slices.IsSortedFunc(s.children, less) {
		slices.SortFunc(s.children, less)
	}
	for _, k := range s.children {
		k.set.sort()
	}
}

// rank orders the sorts of elements: fields, keys, values, indices.
func rank(elem string) int {
	if elem == "" {
		return 4
	}
	return strings.IndexByte("fkvi", elem[0])
}

func compareElems(a, b string) int {
	if a != "" && b != "" && a[0] != b[0] {
		return rank(a) - rank(b)
	}
	return strings.Compare(a, b)
}

// union is all paths of both sorted sets. It may share parts of them.
func union(a, b *Set) *Set {
	if a.Empty() {
		return b
	}
	if b.Empty() {
		return a
	}
	out := &Set{member: a.member || b.member, children: make([]child, 0, max(len(a.children), len(b.children)))}
	i, j := 0, 0
	for i < len(a.children) && j < len(b.children) {
		switch c := compareElems(a.children[i].elem, b.children[j].elem); {
		case c < 0:
			out.children = append(out.children, a.children[i])
			i++
		case c > 0:
			out.children = append(out.children, b.children[j])
			j++
		default:
			out.children = append(out.children, child{a.children[i].elem, union(a.children[i].set, b.children[j].set)})
			i++
			j++
		}
	}
	out.children = append(out.children, a.children[i:]...)
	out.children = append(out.children, b.children[j:]...)
	return out
}

// difference is the paths of a that are not in b, both sorted; a itself when
// that is all of them.
func difference(a, b *Set) *Set {
	if a.Empty() || b.Empty() {
		return a
	}
	member := a.member && !b.member
	copied := member != a.member
	var children []child
	if copied {
		children = make([]child, 0, len(a.children))
	}
	j := 0
	for i, k := range a.children {
		for j < len(b.children) && compareElems(b.children[j].elem, k.elem) < 0 {
			j++
		}
		set := k.set
		if j < len(b.children) && b.children[j].elem == k.elem {
			set = difference(k.set, b.children[j].set)
		}
		if set != k.set && !copied {
			copied = true
			children = append(make([]child, 0, len(a.children)), a.children[:i]...)
		}
		if copied && !set.Empty() {
			children = append(children, child{k.elem, set})
		}
	}
	if !copied {
		return a
	}
	return &Set{member: member, children: children}
}

// without is the set without the top-level field and all below it.
func (s *Set) without(paths ...string) {
	for _, path := range paths {
		elem, rest, deeper := strings.Cut(path, " ")
		s.children = slices.DeleteFunc(s.children, func(k child) bool {
			if k.elem != elem {
				return false
			}
			if deeper {
				k.set.without(rest)
			}
			return !deeper || k.set.Empty()
		})
	}
}

// appendJSON writes the set as FieldsV1.
func (s *Set) appendJSON(b []byte) []byte {
	b = append(b, '{')
	if s.member && len(s.children) > 0 {
		b = append(b, `".":{}`...)
	}
	for i, k := range s.children {
		if i > 0 || s.member {
			b = append(b, ',')
		}
		b = appendQuoted(b, k.elem)
		b = append(b, ':')
		b = k.set.appendJSON(b)
	}
	return append(b, '}')
}

func appendQuoted(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '\\' || c >= 0x80 || c == '<' || c == '>' || c == '&' {
			plain = false
			break
		}
	}
	if !plain {
		q, err := json.Marshal(s)
		if err == nil {
			return append(b, q...)
		}
	}
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

var errFields = errors.New("fieldsV1 is not a tree of objects")

// maxDepth bounds trees that come from outside.
const maxDepth = 500

// parsed keeps what entries say: those of pods of one workload say the same. A
// set that was parsed is never changed.
var parsed [128]atomic.Pointer[parsedSet]

type parsedSet struct {
	text string
	set  *Set
}

// longestKept bounds what is kept to some hundred kilobytes.
const longestKept = 2048

var seed = maphash.MakeSeed()

// read is parse with a memory.
func read(data []byte) (*Set, error) {
	if len(data) > longestKept {
		return parse(data)
	}
	place := &parsed[maphash.Bytes(seed, data)%uint64(len(parsed))]
	if k := place.Load(); k != nil && k.text == string(data) {
		return k.set, nil
	}
	s, err := parse(data)
	if err == nil {
		place.Store(&parsedSet{string(data), s})
	}
	return s, err
}

// parse reads FieldsV1.
func parse(data []byte) (*Set, error) {
	p := &parser{data: data}
	s, err := p.object(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.pos != len(data) {
		return nil, errFields
	}
	// At the root, "." means nothing.
	s.member = false
	s.sort()
	return s, nil
}

type parser struct {
	data []byte
	pos  int
}

func (p *parser) space() {
	for p.pos < len(p.data) && strings.IndexByte(" \t\r\n", p.data[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) take(c byte) bool {
	p.space()
	if p.pos < len(p.data) && p.data[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) object(depth int) (*Set, error) {
	if depth > maxDepth || !p.take('{') {
		return nil, errFields
	}
	s := &Set{}
	if p.take('}') {
		s.member = true
		return s, nil
	}
	for {
		key, err := p.key()
		if err != nil {
			return nil, err
		}
		if !p.take(':') {
			return nil, errFields
		}
		set, err := p.object(depth + 1)
		if err != nil {
			return nil, err
		}
		if key == "." {
			s.member = true
		} else if len(key) < 2 || key[1] != ':' || rank(key) < 0 {
			return nil, errFields
		} else {
			s.children = append(s.children, child{key, set})
		}
		if p.take('}') {
			return s, nil
		}
		if !p.take(',') {
			return nil, errFields
		}
	}
}

func (p *parser) key() (string, error) {
	p.space()
	start := p.pos
	if !p.take('"') {
		return "", errFields
	}
	plain := true
	for p.pos < len(p.data) {
		switch c := p.data[p.pos]; {
		case c == '\\':
			plain = false
			p.pos += 2
			continue
		case c >= utf8.RuneSelf: // perhaps not UTF-8: then it is what is written again
			plain = false
		case c == '"':
			p.pos++
			raw := p.data[start:p.pos]
			if plain {
				return string(raw[1 : len(raw)-1]), nil
			}
			var s string
			if err := json.Unmarshal(raw, &s); err != nil {
				return "", err
			}
			return s, nil
		}
		p.pos++
	}
	return "", errFields
}
