package endpoints

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

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
	found, err := c.store.List(c.ctx, c.listQuery(opts))
	if err != nil {
		return c.fromCache(err, "")
	}
	switch {
	case c.out.as != "":
		return c.writeListView(found)
	case c.out.format == formatProtobuf:
		return c.writeProtobufList(found)
	}
	return c.writeJSONList(found)
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
	q.FieldSet, q.Object = c.fieldSet(), c.selected()
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
	chunks := make([][]byte, 0, 2*len(l.Records)+2)
	chunks = append(chunks, c.listHeader(make([]byte, 0, 256), l))
	for i, rec := range l.Records {
		data, err := c.itemJSON(rec)
		if err != nil {
			return err
		}
		if i > 0 {
			chunks = append(chunks, comma)
		}
		chunks = append(chunks, data)
	}
	chunks = append(chunks, []byte("]}\n"))
	if c.out.pretty || c.out.format == formatYAML {
		whole := bytes.Join(chunks, nil)
		var err error
		if c.out.format == formatYAML {
			whole, err = yaml.JSONToYAML(whole)
		} else {
			whole, err = indent(whole)
		}
		if err != nil {
			return err
		}
		chunks = [][]byte{whole}
	}
	writeChunks(c.w, c.r, c.out.contentType(), chunks)
	return nil
}

var comma = []byte(",")

// itemJSON is a record as an item of a list, in the version served. Custom
// objects carry their kind there, built-in ones do not.
func (c *call) itemJSON(rec *watchcache.Record) ([]byte, error) {
	if c.custom != nil {
		_, data, err := rec.See(c.served)
		return data, err
	}
	data, err := rec.JSON()
	if err != nil {
		return nil, err
	}
	if c.fromHub == nil {
		return data, nil
	}
	obj, err := c.object(rec)
	if err != nil {
		return nil, err
	}
	obj = copyOf(obj)
	setKind(obj, schema.GroupVersionKind{})
	data, err = encodeJSON(obj, false)
	return bytes.TrimSuffix(data, newline), err
}

func (c *call) itemProtobuf(rec *watchcache.Record) ([]byte, error) {
	if c.fromHub == nil {
		return rec.Protobuf()
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
	size := 1 + varintSize(uint64(len(meta))) + len(meta)
	items := make([][]byte, len(l.Records))
	for i, rec := range l.Records {
		if items[i], err = c.itemProtobuf(rec); err != nil {
			return err
		}
		size += 1 + varintSize(uint64(len(items[i]))) + len(items[i])
	}
	gvk := c.gvk
	gvk.Kind = c.res.Names().ListKind
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
	if size < gatherSize {
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
	buf.Grow(gatherSize)
	for _, c := range chunks {
		if buf.Len()+len(c) > gatherSize {
			if _, err := w.Write(buf.Bytes()); err != nil {
				return
			}
			buf.Reset()
			if len(c) > gatherSize {
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

const gatherSize = 64 * 1024
