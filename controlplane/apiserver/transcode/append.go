package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrUnusual says that a message is not as the API server writes them: it has to
// be decoded.
var ErrUnusual = errors.New("the message is not in canonical form")

// A span is where a field's occurrences are: the body of the last, and where
// the first starts and the last ends with their tags.
type span struct {
	body     []byte
	value    uint64
	from, to int
	count    int
}

// scratch is what one call needs besides its output.
type scratch struct {
	spans []span
	most  int // how many of them were in use at once
}

var scratches = sync.Pool{New: func() any { return &scratch{spans: make([]span, 0, 256)} }}

// Append appends the JSON object of a message. On an error, what was appended
// is of no use.
func (p *Plan) Append(b, msg []byte) ([]byte, error) {
	s := scratches.Get().(*scratch)
	b, err := s.object(b, p, msg)
	clear(s.spans[:s.most]) // keeps no message alive
	s.spans, s.most = s.spans[:0], 0
	scratches.Put(s)
	return b, err
}

func (s *scratch) object(b []byte, p *Plan, msg []byte) ([]byte, error) {
	b = append(b, '{')
	b, _, err := s.members(b, p, msg, true)
	return append(b, '}'), err
}

// members appends the members of an object; first says that none is there yet.
func (s *scratch) members(b []byte, p *Plan, msg []byte, first bool) ([]byte, bool, error) {
	base := len(s.spans)
	if err := s.index(p, msg); err != nil {
		return b, first, err
	}
	var err error
	for i := range p.fields {
		f := &p.fields[i]
		at := s.spans[base+i]
		if f.shape == inline {
			if at.count > 1 {
				return b, first, ErrUnusual
			}
			if b, first, err = s.members(b, f.of, at.body, first); err != nil {
				return b, first, err
			}
			continue
		}
		if skipped(f, &at) {
			continue
		}
		if f.kind == unsupported {
			return b, first, ErrUnusual
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, f.name...)
		switch f.shape {
		case single, pointer:
			switch {
			case at.count > 1 && f.kind >= message:
				return b, first, ErrUnusual // messages merge
			case at.count == 0 && (f.shape == pointer || f.kind == binaryText):
				b = append(b, "null"...)
			default:
				b, err = s.value(b, f, &at)
			}
		case list:
			b, err = s.list(b, f, &at, msg)
		default:
			b, err = s.dictionary(b, f, &at, msg)
		}
		if err != nil {
			return b, first, err
		}
	}
	s.spans = s.spans[:base]
	return b, first, nil
}

// skipped says that a field is left out.
func skipped(f *field, at *span) bool {
	if f.omitZero {
		seconds, _, err := timestamp(at.body)
		return err == nil && (len(at.body) == 0 || seconds == zeroSeconds)
	}
	if !f.omitted {
		return false
	}
	if f.shape != single {
		return at.count == 0
	}
	switch f.kind {
	case text, binaryText:
		return len(at.body) == 0
	case boolean, signed64:
		return at.value == 0
	case signed32:
		return int32(at.value) == 0
	}
	return false
}

// index finds the fields of a message; its spans are the last of s.spans.
func (s *scratch) index(p *Plan, msg []byte) error {
	base := len(s.spans)
	s.spans = slices.Grow(s.spans, len(p.fields))[:base+len(p.fields)]
	s.most = max(s.most, len(s.spans))
	spans := s.spans[base:]
	clear(spans)
	for pos := 0; pos < len(msg); {
		number, f, end, err := next(msg, pos)
		if err != nil {
			return err
		}
		if number < len(p.places) && p.places[number] > 0 {
			at := &spans[p.places[number]-1]
			if at.count == 0 {
				at.from = pos
			}
			if f.wire != wireOf(p.fields[p.places[number]-1].kind) {
				return ErrUnusual
			}
			at.body, at.value, at.to = f.body, f.value, end
			at.count++
		}
		pos = end
	}
	return nil
}

func wireOf(k kind) int {
	if k == boolean || k == signed32 || k == signed64 {
		return 0
	}
	return 2
}

type wireField struct {
	wire  int
	body  []byte
	value uint64
}

// next reads the field at pos, and where it ends.
func next(msg []byte, pos int) (number int, f wireField, end int, err error) {
	tag, n := uvarint(msg[pos:])
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<28 {
		return 0, f, 0, ErrUnusual
	}
	pos += n
	value, n := uvarint(msg[pos:])
	if n <= 0 {
		return 0, f, 0, ErrUnusual
	}
	pos += n
	f.wire = int(tag & 7)
	switch f.wire {
	case 0:
		f.value = value
	case 2:
		if value > uint64(len(msg)-pos) {
			return 0, f, 0, ErrUnusual
		}
		f.body = msg[pos : pos+int(value) : pos+int(value)]
		pos += int(value)
	default:
		return 0, f, 0, ErrUnusual // no field of the API's is of these types
	}
	return int(tag >> 3), f, pos, nil
}

// uvarint is binary.Uvarint with the common case inlined.
func uvarint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return binary.Uvarint(b)
}

func (s *scratch) list(b []byte, f *field, at *span, msg []byte) ([]byte, error) {
	if at.count == 0 {
		return append(b, "null"...), nil
	}
	b = append(b, '[')
	n := 0
	for pos := at.from; pos < at.to; {
		number, w, end, err := next(msg, pos)
		if err != nil {
			return b, err
		}
		pos = end
		if number != f.number {
			continue
		}
		if n > 0 {
			b = append(b, ',')
		}
		n++
		if b, err = s.value(b, f, &span{body: w.body, value: w.value, count: 1}); err != nil {
			return b, err
		}
	}
	return append(b, ']'), nil
}

// dictionary appends a map, whose entries are messages of key and value.
func (s *scratch) dictionary(b []byte, f *field, at *span, msg []byte) ([]byte, error) {
	if at.count == 0 {
		return append(b, "null"...), nil
	}
	b = append(b, '{')
	var last []byte
	n := 0
	for pos := at.from; pos < at.to; {
		number, w, end, err := next(msg, pos)
		if err != nil {
			return b, err
		}
		pos = end
		if number != f.number {
			continue
		}
		var key []byte
		value := span{count: 1}
		for at := 0; at < len(w.body); {
			number, part, end, err := next(w.body, at)
			switch {
			case err != nil:
				return b, err
			case number == 1 && part.wire == 2:
				key = part.body
			case number == 2 && part.wire == wireOf(f.kind):
				value.body, value.value = part.body, part.value
			default:
				return b, ErrUnusual
			}
			at = end
		}
		if n > 0 {
			if bytes.Compare(key, last) <= 0 {
				return b, ErrUnusual // JSON has them in order, and each once
			}
			b = append(b, ',')
		}
		n++
		last = key
		b = append(quote(b, key), ':')
		if b, err = s.value(b, f, &value); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

func (s *scratch) value(b []byte, f *field, at *span) ([]byte, error) {
	switch f.kind {
	case text:
		return quote(b, at.body), nil
	case boolean:
		return strconv.AppendBool(b, at.value != 0), nil
	case signed32:
		return strconv.AppendInt(b, int64(int32(at.value)), 10), nil
	case signed64:
		return strconv.AppendInt(b, int64(at.value), 10), nil
	case binaryText:
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, at.body)
		return append(b, '"'), nil
	case message:
		return s.object(b, f.of, at.body)
	case items:
		if len(at.body) == 0 {
			return append(b, "[]"...), nil
		}
		return s.list(b, &field{number: 1, kind: text}, &span{to: len(at.body), count: len(at.body)}, at.body)
	case moment, microMoment:
		return appendTime(b, f.kind, at.body)
	case duration:
		n, err := number(at.body)
		b = append(b, '"')
		b = append(b, time.Duration(n).String()...)
		return append(b, '"'), err
	case quantity:
		s, err := inner(at.body)
		if err != nil || len(s) == 0 || len(at.body) == 0 {
			return b, ErrUnusual
		}
		return quote(b, s), nil
	case intOrString:
		return appendIntOrString(b, at.body)
	case raw:
		s, err := inner(at.body)
		if err != nil || s == nil {
			return b, ErrUnusual
		}
		return appendRaw(b, s)
	}
	return b, ErrUnusual
}

// inner is field 1 of a message that has no other; nil when it is not there.
func inner(msg []byte) ([]byte, error) {
	if len(msg) == 0 {
		return nil, nil
	}
	number, f, end, err := next(msg, 0)
	if err != nil || number != 1 || f.wire != 2 || end != len(msg) {
		return nil, ErrUnusual
	}
	return f.body, nil
}

func number(msg []byte) (int64, error) {
	if len(msg) == 0 {
		return 0, nil
	}
	number, f, end, err := next(msg, 0)
	if err != nil || number != 1 || f.wire != 0 || end != len(msg) {
		return 0, ErrUnusual
	}
	return int64(f.value), nil
}

// zeroSeconds is the zero time.
const zeroSeconds = -62135596800

func timestamp(msg []byte) (seconds int64, nanos int32, err error) {
	for pos := 0; pos < len(msg); {
		number, f, end, err := next(msg, pos)
		if err != nil || f.wire != 0 {
			return 0, 0, ErrUnusual
		}
		switch number {
		case 1:
			seconds = int64(f.value)
		case 2:
			nanos = int32(f.value)
		}
		pos = end
	}
	return seconds, nanos, nil
}

func appendTime(b []byte, k kind, msg []byte) ([]byte, error) {
	seconds, nanos, err := timestamp(msg)
	if err != nil {
		return b, err
	}
	if len(msg) == 0 || seconds == zeroSeconds {
		return append(b, "null"...), nil
	}
	layout := time.RFC3339
	if k == microMoment {
		layout = metav1.RFC3339Micro
	} else {
		nanos = 0
	}
	b = append(b, '"')
	b = time.Unix(seconds, int64(nanos)).UTC().AppendFormat(b, layout)
	return append(b, '"'), nil
}

func appendIntOrString(b, msg []byte) ([]byte, error) {
	var form, n uint64
	var s []byte
	for pos := 0; pos < len(msg); {
		number, f, end, err := next(msg, pos)
		if err != nil {
			return b, err
		}
		switch {
		case number == 1 && f.wire == 0:
			form = f.value
		case number == 2 && f.wire == 0:
			n = f.value
		case number == 3 && f.wire == 2:
			s = f.body
		default:
			return b, ErrUnusual
		}
		pos = end
	}
	switch form {
	case 0:
		return strconv.AppendInt(b, int64(int32(n)), 10), nil
	case 1:
		return quote(b, s), nil
	}
	return b, ErrUnusual
}
