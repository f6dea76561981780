package endpoints

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/watchcache"
)

// protobufMagic starts every protobuf document of the API.
var protobufMagic = []byte("k8s\x00")

// gzipFrom is the size from which an answer is worth compressing.
const gzipFrom = 128 * 1024

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooled keeps one big answer from staying in memory for good.
const maxPooled = 1 << 20

func getBuffer() *bytes.Buffer {
	b := buffers.Get().(*bytes.Buffer)
	b.Reset()
	return b
}

func putBuffer(b *bytes.Buffer) {
	if b.Cap() <= maxPooled {
		buffers.Put(b)
	}
}

var gzips = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(io.Discard, 1)
	return w
}}

// body writes an answer whose size is known, compressed if that pays.
func writeBody(w http.ResponseWriter, r *http.Request, code int, contentType string, chunks ...[]byte) {
	size := 0
	for _, c := range chunks {
		size += len(c)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	if size >= gzipFrom && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		w.WriteHeader(code)
		z := gzips.Get().(*gzip.Writer)
		z.Reset(w)
		for _, c := range chunks {
			if _, err := z.Write(c); err != nil {
				break
			}
		}
		z.Close() // an error is the client gone
		z.Reset(io.Discard)
		gzips.Put(z)
		return
	}
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(code)
	for _, c := range chunks {
		if _, err := w.Write(c); err != nil {
			return
		}
	}
}

func acceptsGzip(r *http.Request) bool {
	header := r.Header.Get("Accept-Encoding")
	if header == "" {
		return false
	}
	for part := range strings.SplitSeq(header, ",") {
		coding, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" || coding == "*" {
			return strings.TrimSpace(q) != "q=0"
		}
	}
	return false
}

// writeObject answers with an object of the caller's own.
func writeObject(w http.ResponseWriter, r *http.Request, out output, code int, obj runtime.Object, gvk schema.GroupVersionKind) {
	setKind(obj, gvk)
	data, err := encode(out, obj, gvk)
	if err != nil {
		status := statusOf(r.Context(), fmt.Errorf("encode %s: %w", gvk.Kind, err))
		if data, err = encodeJSON(status, false); err != nil {
			data = nil
		}
		out, code = output{}, int(status.Code)
	}
	writeBody(w, r, code, out.contentType(), data)
}

// encode makes a whole document of obj, whose kind is set.
func encode(out output, obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	switch out.format {
	case formatProtobuf:
		m, ok := obj.(marshaler)
		if !ok {
			return nil, notAcceptable()
		}
		message, err := m.Marshal()
		if err != nil {
			return nil, err
		}
		return envelope(gvk, message), nil
	case formatYAML:
		return yaml.Marshal(obj)
	}
	return encodeJSON(obj, out.pretty)
}

type marshaler interface{ Marshal() ([]byte, error) }

// encodeJSON ends with a newline, as every JSON answer of the API does.
func encodeJSON(obj any, pretty bool) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		obj = u.Object
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if pretty {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(obj); err != nil {
		return nil, err
	}
	if pretty {
		b.Truncate(b.Len() - 1) // pretty documents end without one
	}
	return b.Bytes(), nil
}

// indent makes a compact document pretty.
func indent(data []byte) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// envelope wraps a message as the API's protobuf documents are.
func envelope(gvk schema.GroupVersionKind, message []byte) []byte {
	b := make([]byte, 0, len(message)+64)
	b = append(b, protobufMagic...)
	return appendUnknown(b, gvk, message)
}

// appendUnknown appends runtime.Unknown with raw.
func appendUnknown(b []byte, gvk schema.GroupVersionKind, message []byte) []byte {
	b = appendUnknownHead(b, gvk, len(message))
	b = append(b, message...)
	return appendUnknownTail(b)
}

// appendUnknownHead appends runtime.Unknown up to where size bytes of raw go.
func appendUnknownHead(b []byte, gvk schema.GroupVersionKind, size int) []byte {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	meta := make([]byte, 0, len(apiVersion)+len(kind)+4)
	meta = appendField(meta, 1, []byte(apiVersion))
	meta = appendField(meta, 2, []byte(kind))
	b = appendField(b, 1, meta)
	b = append(b, 2<<3|2)
	return appendVarint(b, uint64(size))
}

// appendUnknownTail appends the empty content encoding and content type.
func appendUnknownTail(b []byte) []byte { return append(b, 3<<3|2, 0, 4<<3|2, 0) }

// appendField appends a length-delimited field.
func appendField(b []byte, number byte, data []byte) []byte {
	b = append(b, number<<3|2)
	b = appendVarint(b, uint64(len(data)))
	return append(b, data...)
}

// fieldSize is the length of a field of n bytes whose number is below 16.
func fieldSize(n int) int { return 1 + varintSize(uint64(n)) + n }

func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func varintSize(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// writeRecord answers with a record, from the bytes it already holds where
// the client wants the object as it is.
func (c *call) writeRecord(code int, rec *watchcache.Record) error {
	if c.custom != nil && c.out.as == "" && c.out.format == formatJSON {
		return c.writeCustom(code, rec)
	}
	if c.out.as != "" || c.out.format == formatYAML || c.fromHub != nil || c.custom != nil {
		obj, err := c.object(rec)
		if err != nil {
			return err
		}
		return c.write(code, copyOf(obj))
	}
	if c.out.format == formatProtobuf {
		message := rec.Stored()
		head := make([]byte, 0, 64)
		head = appendUnknownHead(append(head, protobufMagic...), c.gvk, len(message))
		writeBody(c.w, c.r, code, typeProtobuf, head, message, appendUnknownTail(nil))
		return nil
	}
	// JSON is about twice the message.
	data, err := rec.AppendDocument(make([]byte, 0, 2*rec.Size()+len(c.jsonHead)+1), c.jsonHead)
	if err != nil {
		return err
	}
	if c.out.pretty {
		if data, err = indent(data); err != nil {
			return err
		}
	} else {
		data = append(data, '\n')
	}
	writeBody(c.w, c.r, code, typeJSON, data)
	return nil
}

var newline = []byte("\n")

// write answers with an object of the caller's own, in the version served.
func (c *call) write(code int, obj runtime.Object) error {
	gvk := c.gvk
	if c.sub != nil && !c.sub.Kind.Empty() {
		gvk = c.sub.Kind
	}
	if status, ok := obj.(*metav1.Status); ok {
		request.AuditFrom(c.ctx).SetResponse(status)
		writeObject(c.w, c.r, c.plain(), code, status, statusKind)
		return nil
	}
	setKind(obj, gvk)
	if c.out.as != "" {
		return c.writeViewOf(code, obj)
	}
	if _, ok := obj.(marshaler); c.out.format == formatProtobuf && !ok {
		return notAcceptable()
	}
	writeObject(c.w, c.r, c.out, code, obj, gvk)
	return nil
}

// plain is the output without a transformation.
func (c *call) plain() output {
	out := c.out
	out.as, out.version = "", ""
	return out
}
