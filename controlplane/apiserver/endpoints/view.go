package endpoints

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

const metaGroup = "meta.k8s.io"

func (c *call) viewKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: metaGroup, Version: c.out.version, Kind: kind}
}

// view is one object as the client wants to see it.
func (c *call) view(obj runtime.Object, columns bool) (runtime.Object, schema.GroupVersionKind, error) {
	o, ok := obj.(registry.Object)
	if !ok {
		return nil, schema.GroupVersionKind{}, notAcceptable()
	}
	switch c.out.as {
	case "Table":
		table, err := c.newTableView(columns)
		if err != nil {
			return nil, schema.GroupVersionKind{}, err
		}
		table.ResourceVersion = o.GetResourceVersion()
		row, err := c.row(o)
		if err != nil {
			return nil, schema.GroupVersionKind{}, err
		}
		table.Rows = append(table.Rows, row)
		return table, c.viewKind("Table"), nil
	case "PartialObjectMetadata":
		return partial(o), c.viewKind("PartialObjectMetadata"), nil
	}
	return nil, schema.GroupVersionKind{}, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("you requested %s, but the requested object is not a list (*%s)", c.out.as, c.hubType("")))
}

func (c *call) writeViewOf(code int, obj runtime.Object) error {
	view, gvk, err := c.view(obj, true)
	if err != nil {
		return err
	}
	out := c.out
	writeObject(c.w, c.r, out, code, view, gvk)
	return nil
}

// writeListView answers a list as a Table or as metadata alone. What is long and
// need not be held as a whole is streamed: of each object only its row is kept, and
// not for longer than it takes to write it.
func (c *call) writeListView(l *watchcache.List) error {
	if size := sizeOf(l.Records); size >= gzipFrom {
		sorted := c.out.as == "Table" && c.res.Traits().SortedBy != ""
		switch {
		case c.out.format == formatJSON && !c.out.pretty && !sorted:
			return c.streamView(l)
		case c.out.format == formatProtobuf && c.out.as == "PartialObjectMetadataList":
			return c.streamMetadata(l)
		}
		if err := c.reserveForList(size); err != nil {
			return err
		}
	}
	whole, err := c.listView(l)
	if err != nil {
		return err
	}
	writeObject(c.w, c.r, c.out, http.StatusOK, whole, c.viewKind(c.out.as))
	return nil
}

// listView is the whole of a list as the client wants to see it.
func (c *call) listView(l *watchcache.List) (runtime.Object, error) {
	switch c.out.as {
	case "Table":
		table, err := c.newTableView(true)
		if err != nil {
			return nil, err
		}
		table.ListMeta = listMeta(l)
		table.Rows = make([]metav1.TableRow, 0, len(l.Records))
		for _, rec := range l.Records {
			row, err := c.rowOf(rec)
			if err != nil {
				return nil, err
			}
			table.Rows = append(table.Rows, row)
		}
		if by := c.res.Traits().SortedBy; by != "" {
			column := slices.IndexFunc(c.res.ColumnDefinitions(), func(d metav1.TableColumnDefinition) bool { return d.Name == by })
			slices.SortStableFunc(table.Rows, func(a, b metav1.TableRow) int {
				return cmp.Compare(a.Cells[column].(int64), b.Cells[column].(int64))
			})
		}
		return table, nil
	case "PartialObjectMetadataList":
		list := &metav1.PartialObjectMetadataList{ListMeta: listMeta(l), Items: make([]metav1.PartialObjectMetadata, 0, len(l.Records))}
		for _, rec := range l.Records {
			item, err := c.partialOf(rec)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *item)
		}
		return list, nil
	}
	return nil, statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (*%s)", c.hubType("List")))
}

// streamView writes the list of a view: an empty one, its rows or items put in.
func (c *call) streamView(l *watchcache.List) error {
	empty, err := c.listView(&watchcache.List{Revision: l.Revision, Continue: l.Continue, Remaining: l.Remaining})
	if err != nil {
		return err
	}
	setKind(empty, c.viewKind(c.out.as))
	head, err := encodeJSON(empty, false)
	if err != nil {
		return err
	}
	c.stream(c.out.contentType(), bytes.TrimSuffix(head, listEnd), l.Records, comma, c.appendView, listEnd)
	return nil
}

// appendView appends a record's row, or its metadata.
func (c *call) appendView(b []byte, rec *watchcache.Record) ([]byte, error) {
	var item any
	var err error
	if c.out.as == "Table" {
		item, err = c.rowOf(rec)
	} else {
		item, err = c.partialOf(rec)
	}
	if err != nil {
		return nil, err
	}
	buf := bytes.NewBuffer(b)
	if err := json.NewEncoder(buf).Encode(item); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), newline), nil
}

// streamMetadata writes a list of metadata in protobuf, whose length comes first:
// each object is looked at twice.
func (c *call) streamMetadata(l *watchcache.List) error {
	lm := listMeta(l)
	meta, err := lm.Marshal()
	if err != nil {
		return err
	}
	size := fieldSize(len(meta))
	for _, rec := range l.Records {
		item, err := c.partialOf(rec)
		if err != nil {
			return err
		}
		size += fieldSize(item.Size())
	}
	head := appendUnknownHead(append(make([]byte, 0, 128+len(meta)), protobufMagic...), c.viewKind(c.out.as), size)
	c.stream(typeProtobuf, appendField(head, 1, meta), l.Records, nil, c.appendMetadata, appendUnknownTail(nil))
	return nil
}

// appendMetadata appends a record's metadata as field 2 of a list.
func (c *call) appendMetadata(b []byte, rec *watchcache.Record) ([]byte, error) {
	item, err := c.partialOf(rec)
	if err != nil {
		return nil, err
	}
	data, err := item.Marshal()
	if err != nil {
		return nil, err
	}
	return appendField(b, 2, data), nil
}

func (c *call) rowOf(rec *watchcache.Record) (metav1.TableRow, error) {
	obj, err := c.object(rec)
	if err != nil {
		return metav1.TableRow{}, err
	}
	return c.row(obj)
}

func (c *call) partialOf(rec *watchcache.Record) (*metav1.PartialObjectMetadata, error) {
	obj, err := c.object(rec)
	if err != nil {
		return nil, err
	}
	item := partial(obj)
	setKind(item, c.viewKind("PartialObjectMetadata"))
	return item, nil
}

// hubType is what upstream's server calls the type of the kind, or of its list.
func (c *call) hubType(list string) string {
	if c.custom != nil {
		return "unstructured.Unstructured" + list
	}
	return hubName(c.gvk) + list
}

// includeObject is what rows carry of their objects.
func (c *call) includeObject() (metav1.IncludeObjectPolicy, error) {
	policy := metav1.IncludeObjectPolicy(c.query().Get("includeObject"))
	switch policy {
	case "":
		return metav1.IncludeMetadata, nil
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
		return policy, nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", policy))
}

func (c *call) newTableView(columns bool) (*metav1.Table, error) {
	if _, err := c.includeObject(); err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	if columns {
		table.ColumnDefinitions = c.res.ColumnDefinitions()
	}
	return table, nil
}

func (c *call) row(obj registry.Object) (metav1.TableRow, error) {
	row := metav1.TableRow{Cells: c.res.Row(obj)}
	policy, err := c.includeObject()
	if err != nil {
		return row, err
	}
	switch policy {
	case metav1.IncludeObject:
		whole := copyOf(obj)
		setKind(whole, c.gvk)
		row.Object.Object = whole
	case metav1.IncludeMetadata:
		m := partial(obj)
		setKind(m, c.viewKind("PartialObjectMetadata"))
		row.Object.Object = m
	}
	return row, nil
}

// partial is an object's metadata, shared with it: only to be encoded.
func partial(obj registry.Object) *metav1.PartialObjectMetadata {
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			out := &metav1.PartialObjectMetadata{ObjectMeta: *m}
			if _, ok := obj.(*appsv1.DaemonSet); ok {
				// Upstream's hub holds it as a field.
				out.Annotations = maps.Clone(m.Annotations)
				delete(out.Annotations, appsv1.DeprecatedTemplateGeneration)
			}
			return out
		}
	}
	out := &metav1.PartialObjectMetadata{}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if m, ok := u.Object["metadata"].(map[string]any); ok {
			if runtime.DefaultUnstructuredConverter.FromUnstructured(m, &out.ObjectMeta) == nil {
				return out
			}
		}
	}
	out.Name, out.Namespace, out.UID, out.ResourceVersion = obj.GetName(), obj.GetNamespace(), obj.GetUID(), obj.GetResourceVersion()
	out.Labels, out.Annotations = obj.GetLabels(), obj.GetAnnotations()
	return out
}
