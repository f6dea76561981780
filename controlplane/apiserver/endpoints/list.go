package endpoints

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/pieces"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// list answers with the objects a query finds.
func (c *call) list() error {
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	if c.out, err = c.negotiate(false); err != nil {
		return err
	}
	found, err := c.found(c.listQuery(opts), opts.Limit > 0)
	if err != nil {
		return err
	}
	return c.writeList(found)
}

func (c *call) writeList(l *watchcache.List) error {
	if err := c.convert(l.Records); err != nil {
		return err
	}
	switch {
	case c.out.as != "":
		return c.writeListView(l)
	case c.out.format == formatProtobuf:
		return c.writeProtobufList(l)
	}
	return c.writeJSONList(l)
}

// convert has webhooks convert what is stored in another version before the answer
// begins: they may fail.
func (c *call) convert(records []*watchcache.Record) error {
	if c.custom == nil {
		return nil
	}
	served := []byte(`{"apiVersion":"` + c.gvk.GroupVersion().String() + `"`) // keys are stored sorted
	for _, rec := range records {
		if bytes.HasPrefix(rec.Stored(), served) {
			continue
		}
		if _, _, err := rec.See(c.served); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) listQuery(opts *internalversion.ListOptions) watchcache.Query {
	q := watchcache.Query{
		Namespace: c.info.Namespace, Name: c.info.Name,
		Labels: opts.LabelSelector, Fields: opts.FieldSelector,
		Limit: opts.Limit, Continue: opts.Continue,
		ResourceVersion: opts.ResourceVersion, Match: opts.ResourceVersionMatch,
	}
	if c.gvr.Resource == "namespaces" && c.gvr.Group == "" {
		q.Namespace = ""
	}
	q.FieldSet, q.Object = c.fieldSet(), c.selectable()
	return q
}

// fieldSet gives the fields of the version served, where the one stored has
// others.
func (e *entry) fieldSet() func(registry.Object) fields.Set {
	if e.custom != nil {
		return e.res.FieldSet
	}
	if e.fromHub == nil {
		return nil
	}
	return func(o registry.Object) fields.Set { return e.res.FieldSet(e.fromHub(o)) }
}

func listMeta(l *watchcache.List) metav1.ListMeta {
	return metav1.ListMeta{
		ResourceVersion: strconv.FormatInt(l.Revision, 10), Continue: l.Continue, RemainingItemCount: l.Remaining}
}

// listHeader appends the list up to the first item.
func (c *call) listHeader(b []byte, l *watchcache.List) []byte {
	b = append(b, c.listHead...)
	if c.custom != nil && l.Continue == "" {
		b = append(b, `"continue":"",`...) // upstream's lists of custom objects always say so
	}
	b = append(b, `"resourceVersion":"`...)
	b = strconv.AppendInt(b, l.Revision, 10)
	b = append(b, '"')
	if l.Continue != "" {
		b = append(b, `,"continue":`...)
		b = strconv.AppendQuote(b, l.Continue)
		if l.Remaining != nil {
			b = append(b, `,"remainingItemCount":`...)
			b = strconv.AppendInt(b, *l.Remaining, 10)
		}
	}
	return append(b, `},"items":[`...)
}

func (c *call) writeJSONList(l *watchcache.List) error {
	head := c.listHeader(make([]byte, 0, 256), l)
	size := sizeOf(l.Records)
	if c.out.pretty || c.out.format == formatYAML {
		if err := c.reserveForList(size); err != nil {
			return err
		}
		whole, err := c.appendItems(head, l)
		if err != nil {
			return err
		}
		if c.out.format == formatYAML {
			whole, err = yaml.JSONToYAML(whole)
		} else {
			whole, err = indent(whole)
		}
		if err != nil {
			return err
		}
		writeBody(c.w, c.r, http.StatusOK, c.out.contentType(), whole)
		return nil
	}
	if size < gzipFrom {
		whole, err := c.appendItems(slices.Grow(head, 2*size), l)
		if err != nil {
			return err
		}
		writeBody(c.w, c.r, http.StatusOK, typeJSON, whole)
		return nil
	}
	if acceptsGzip(c.r) {
		cut := c.s.pieces.Cut(pieces.Form{Kind: c.entry, Format: watchcache.JSON}, l.Records, comma, sure(c.appendItem))
		writeHead(c.w, typeJSON, true)
		_ = pieces.Write(c.w, head, cut, comma, listEnd) // an error is the client gone
		return nil
	}
	c.stream(typeJSON, head, l.Records, comma, c.appendItem, listEnd)
	return nil
}

// sizeOf is what records are long in protobuf; in JSON they are longer.
func sizeOf(records []*watchcache.Record) int {
	size := 0
	for _, rec := range records {
		size += rec.Size()
	}
	return size
}

var (
	comma   = []byte(",")
	listEnd = []byte("]}\n")
)

// appendItems appends all items and the end of the list.
func (c *call) appendItems(b []byte, l *watchcache.List) ([]byte, error) {
	for i, rec := range l.Records {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = c.appendItem(b, rec); err != nil {
			return nil, err
		}
	}
	return append(b, listEnd...), nil
}

// appendItem appends a record as an item of a list, in the version served.
// Custom objects carry their kind there, built-in ones do not.
func (c *call) appendItem(b []byte, rec *watchcache.Record) ([]byte, error) {
	if c.custom != nil {
		_, data, err := rec.See(c.served)
		return append(b, data...), err
	}
	if c.fromHub == nil {
		return rec.AppendJSON(b)
	}
	obj, err := c.object(rec)
	if err != nil {
		return nil, err
	}
	obj = copyOf(obj)
	setKind(obj, schema.GroupVersionKind{})
	data, err := encodeJSON(obj, false)
	return append(b, bytes.TrimSuffix(data, newline)...), err
}

func (c *call) itemProtobuf(rec *watchcache.Record) ([]byte, error) {
	if c.fromHub == nil {
		return rec.Stored(), nil
	}
	obj, err := c.object(rec)
	if err != nil {
		return nil, err
	}
	m, ok := obj.(marshaler)
	if !ok {
		return nil, notAcceptable()
	}
	return m.Marshal()
}

// appendProtobufItem appends a record as field 2 of a list.
func (c *call) appendProtobufItem(b []byte, rec *watchcache.Record) ([]byte, error) {
	data, err := c.itemProtobuf(rec)
	if err != nil {
		return nil, err
	}
	return appendField(b, 2, data), nil
}

// writeProtobufList puts the list message together around the items' bytes.
// In every list type, metadata is field 1 and items is field 2.
func (c *call) writeProtobufList(l *watchcache.List) error {
	if c.custom != nil {
		return notAcceptable()
	}
	lm := listMeta(l)
	meta, err := lm.Marshal()
	if err != nil {
		return err
	}
	size := fieldSize(len(meta))
	gvk := c.gvk
	gvk.Kind = c.res.Names().ListKind
	if sizeOf(l.Records) >= gzipFrom && acceptsGzip(c.r) {
		for _, rec := range l.Records {
			item, err := c.itemProtobuf(rec)
			if err != nil {
				return err
			}
			size += fieldSize(len(item))
		}
		head := appendUnknownHead(append(make([]byte, 0, 64+len(meta)), protobufMagic...), gvk, size)
		cut := c.s.pieces.Cut(pieces.Form{Kind: c.entry, Format: watchcache.Protobuf}, l.Records, nil, sure(c.appendProtobufItem))
		writeHead(c.w, typeProtobuf, true)
		_ = pieces.Write(c.w, appendField(head, 1, meta), cut, nil, appendUnknownTail(nil)) // an error is the client gone
		return nil
	}
	items := make([][]byte, len(l.Records))
	for i, rec := range l.Records {
		if items[i], err = c.itemProtobuf(rec); err != nil {
			return err
		}
		size += fieldSize(len(items[i]))
	}
	head := make([]byte, 0, 64+len(meta))
	head = appendUnknownHead(append(head, protobufMagic...), gvk, size)
	head = appendField(head, 1, meta)
	// All items' tags and lengths live in one array, cut into pieces.
	tags := make([]byte, 0, 6*len(items))
	chunks := make([][]byte, 0, 2*len(items)+2)
	chunks = append(chunks, head)
	for _, item := range items {
		from := len(tags)
		tags = appendVarint(append(tags, 2<<3|2), uint64(len(item)))
		chunks = append(chunks, tags[from:len(tags):len(tags)], item)
	}
	chunks = append(chunks, appendUnknownTail(nil))
	writeChunks(c.w, c.r, typeProtobuf, chunks)
	return nil
}

// writeChunks gathers small pieces into big writes: a system call, or a
// chunk, per piece would cost more than the copy.
func writeChunks(w http.ResponseWriter, r *http.Request, contentType string, chunks [][]byte) {
	size := 0
	for _, c := range chunks {
		size += len(c)
	}
	if size < writeBufferSize {
		b := make([]byte, 0, size)
		for _, c := range chunks {
			b = append(b, c...)
		}
		writeBody(w, r, http.StatusOK, contentType, b)
		return
	}
	if acceptsGzip(r) {
		writeBody(w, r, http.StatusOK, contentType, chunks...)
		return
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set("Content-Length", fmt.Sprint(size))
	w.WriteHeader(http.StatusOK)
	buf := getBuffer()
	defer putBuffer(buf)
	buf.Grow(writeBufferSize)
	for _, c := range chunks {
		if buf.Len()+len(c) > writeBufferSize {
			if _, err := w.Write(buf.Bytes()); err != nil {
				return
			}
			buf.Reset()
			if len(c) > writeBufferSize {
				if _, err := w.Write(c); err != nil {
					return
				}
				continue
			}
		}
		buf.Write(c)
	}
	w.Write(buf.Bytes()) // an error is the client gone
}

const writeBufferSize = 64 * 1024
