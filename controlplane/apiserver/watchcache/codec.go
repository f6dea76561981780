package watchcache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/transcode"
)

// protoMessage is what every built-in kind's generated code offers.
type protoMessage interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// magic starts every protobuf value in the store and on the wire.
var magic = []byte("k8s\x00")

// A form is how values are stored.
type form int

const (
	protobufForm form = iota
	jsonForm          // JSON in the store, protobuf in memory
	customForm        // JSON in both
)

// A codec turns one kind's objects into stored values and back.
type codec struct {
	form   form
	weight int // bytes that a decoded object takes, per byte of its message
	text   *registry.Text
	prefix string // below /registry/
	head   []byte // magic and the envelope's TypeMeta, as watchers see it
	stored []byte // the same in the store, where jsonForm has a document's start
	new    func() registry.Object
	// complete fills what a stored value lacks; nil when it lacks nothing.
	complete func(registry.Object)
	// decoded fills what messages have no room for; nil when they have.
	decoded func(registry.Object)
	plan    *transcode.Plan // nil when JSON is made of the decoded object
	paths   map[string]transcode.Path
	budget  *budget
}

func newCodec(r registry.Resource, b *budget) *codec {
	c := &codec{prefix: r.Storage().Prefix, head: envelopeHead(r.GVK()), stored: envelopeHead(r.Storage().GVK), new: r.New, budget: b, weight: 4}
	switch _, custom := r.New().(*unstructured.Unstructured); {
	case custom:
		c.form = customForm
		return c
	case r.Storage().JSON:
		c.form, c.stored, c.text = jsonForm, jsonHead(r.GVK()), r.Storage().Text
		c.weight = 24 // schemas are many small and mostly empty structs
	}
	c.complete = r.Storage().Complete
	c.plan, c.decoded = transcode.Of(r.New()), r.Storage().Decoded
	c.paths = paths(r, c.plan)
	return c
}

// envelopeHead is the constant start of a stored value: magic, then field 1
// (TypeMeta) of runtime.Unknown.
func envelopeHead(gvk schema.GroupVersionKind) []byte {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	var meta []byte
	meta = appendBytes(meta, 0x0a, []byte(apiVersion))
	meta = appendBytes(meta, 0x12, []byte(kind))
	return appendBytes(bytes.Clone(magic), 0x0a, meta)
}

// envelopeTail is the constant end: empty contentEncoding and contentType,
// which upstream writes too.
var envelopeTail = []byte{0x1a, 0x00, 0x22, 0x00}

func appendBytes(to []byte, tag byte, b []byte) []byte {
	to = append(to, tag)
	to = binary.AppendUvarint(to, uint64(len(b)))
	return append(to, b...)
}

// encode returns the stored value of o, which loses its resourceVersion, and
// the message inside.
func (c *codec) encode(o registry.Object) (value, message []byte, err error) {
	if c.form != protobufForm {
		return c.encodeText(o)
	}
	m, ok := o.(protoMessage)
	if !ok {
		return nil, nil, fmt.Errorf("encode %T: no protobuf form", o)
	}
	o.SetResourceVersion("")
	size := m.Size()
	value = make([]byte, 0, len(c.stored)+1+binary.MaxVarintLen64+size+len(envelopeTail))
	value = append(value, c.stored...)
	value = append(value, 0x12)
	value = binary.AppendUvarint(value, uint64(size))
	start := len(value)
	value = value[:start+size]
	message = value[start:]
	if n, err := m.MarshalToSizedBuffer(message); err != nil || n != size {
		return nil, nil, fmt.Errorf("encode %T: %d of %d bytes: %w", o, n, size, err)
	}
	return append(value, envelopeTail...), message, nil
}

// record makes a Record of a stored value.
func (c *codec) record(key string, value []byte, revision int64) (*Record, error) {
	message, err := c.messageOf(value)
	if err != nil {
		return nil, err
	}
	if c.complete != nil {
		if message, err = c.completed(message); err != nil {
			return nil, err
		}
	}
	message, err = c.versioned(message, revision)
	if err != nil {
		return nil, err
	}
	return &Record{Key: key, Revision: revision, codec: c, message: message}, nil
}

// completed is message with what it lacks.
func (c *codec) completed(message []byte) ([]byte, error) {
	o, err := c.decode(message)
	if err != nil {
		return nil, err
	}
	c.complete(o)
	_, message, err = c.encode(o)
	return message, err
}

// messageOf reads built-in kinds in whichever form they are: upstream's
// --storage-media-type, or an older release, may have chosen the other.
func (c *codec) messageOf(value []byte) ([]byte, error) {
	switch {
	case c.form == customForm:
		return bytes.TrimSpace(value), nil
	case c.text == nil && bytes.HasPrefix(value, magic):
		return envelopeRaw(value)
	}
	return c.messageOfText(value)
}

// versioned is message with metadata.resourceVersion set.
func (c *codec) versioned(message []byte, revision int64) ([]byte, error) {
	if c.form == customForm {
		return withJSONVersion(message, revision)
	}
	return withResourceVersion(message, revision)
}

// same says that message, which has no resourceVersion, is rec's but for that.
func (c *codec) same(message []byte, rec *Record) bool {
	if c.form != customForm && !bytes.Equal(afterMeta(message), afterMeta(rec.message)) {
		return false
	}
	with, err := c.versioned(message, rec.Revision)
	return err == nil && bytes.Equal(with, rec.message)
}

// afterMeta is what follows the metadata of a message.
func afterMeta(message []byte) []byte {
	if len(message) > 0 && message[0] == 0x0a {
		if _, _, _, rest, err := nextField(message); err == nil {
			return rest
		}
	}
	return message
}

func (c *codec) decode(message []byte) (registry.Object, error) {
	o := c.new()
	if c.form == customForm {
		return o, decodeCustom(message, o)
	}
	m, ok := o.(protoMessage)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf form", o)
	}
	if err := m.Unmarshal(message); err != nil {
		return nil, err
	}
	if c.decoded != nil {
		c.decoded(o)
	}
	return o, nil
}

// envelopeRaw is field 2 (raw) of the runtime.Unknown after the magic bytes.
func envelopeRaw(value []byte) ([]byte, error) {
	for b := value[len(magic):]; len(b) > 0; {
		tag, body, _, rest, err := nextField(b)
		if err != nil {
			return nil, err
		}
		if tag == 0x12 {
			return body, nil
		}
		b = rest
	}
	return nil, nil
}

// nextField cuts the first field off b: its tag, its body if it is
// length-delimited, all its bytes, and what follows.
func nextField(b []byte) (tag uint64, body, whole, rest []byte, err error) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil, nil, io.ErrUnexpectedEOF
	}
	end := n
	switch tag & 7 {
	case 0:
		_, k := binary.Uvarint(b[n:])
		if k <= 0 {
			return 0, nil, nil, nil, io.ErrUnexpectedEOF
		}
		end += k
	case 1:
		end += 8
	case 2:
		size, k := binary.Uvarint(b[n:])
		if k <= 0 || size > uint64(len(b)-n-k) {
			return 0, nil, nil, nil, io.ErrUnexpectedEOF
		}
		body = b[n+k : n+k+int(size)]
		end += k + int(size)
	case 5:
		end += 4
	default:
		return 0, nil, nil, nil, fmt.Errorf("protobuf wire type %d", tag&7)
	}
	if end > len(b) {
		return 0, nil, nil, nil, io.ErrUnexpectedEOF
	}
	return tag, body, b[:end], b[end:], nil
}

// withResourceVersion copies message with metadata.resourceVersion (field 6 of
// field 1) set. Every kind has its ObjectMeta in field 1; fields come in
// ascending order, as upstream's encoder writes them.
func withResourceVersion(message []byte, revision int64) ([]byte, error) {
	var meta, rest []byte
	rest = message
	if len(message) > 0 && message[0] == 0x0a {
		var err error
		if _, meta, _, rest, err = nextField(message); err != nil {
			return nil, err
		}
	}
	// Find where field 6 is or belongs.
	before, after := 0, len(meta)
	for b := meta; len(b) > 0; {
		tag, _, whole, next, err := nextField(b)
		if err != nil {
			return nil, err
		}
		if tag>>3 >= 6 {
			before = len(meta) - len(b)
			after = before
			if tag>>3 == 6 {
				after += len(whole)
			}
			break
		}
		before = len(meta) - len(next)
		b = next
	}
	var digits [20]byte
	version := strconv.AppendInt(digits[:0], revision, 10)
	metaSize := before + 2 + len(version) + len(meta) - after
	out := make([]byte, 0, 1+binary.MaxVarintLen32+metaSize+len(rest))
	out = append(out, 0x0a)
	out = binary.AppendUvarint(out, uint64(metaSize))
	out = append(out, meta[:before]...)
	out = appendBytes(out, 0x32, version)
	out = append(out, meta[after:]...)
	return append(out, rest...), nil
}
