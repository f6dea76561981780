package endpoints

import (
	"cmp"
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

// writeListView answers a list as a Table or as metadata alone.
func (c *call) writeListView(l *watchcache.List) error {
	switch c.out.as {
	case "Table":
		table, err := c.newTableView(true)
		if err != nil {
			return err
		}
		table.ListMeta = listMeta(l)
		table.Rows = make([]metav1.TableRow, 0, len(l.Records))
		for _, rec := range l.Records {
			obj, err := c.object(rec)
			if err != nil {
				return err
			}
			row, err := c.row(obj)
			if err != nil {
				return err
			}
			table.Rows = append(table.Rows, row)
		}
		if by := c.res.Traits().SortedBy; by != "" {
			column := slices.IndexFunc(c.res.ColumnDefinitions(), func(d metav1.TableColumnDefinition) bool { return d.Name == by })
			slices.SortStableFunc(table.Rows, func(a, b metav1.TableRow) int {
				return cmp.Compare(a.Cells[column].(int64), b.Cells[column].(int64))
			})
		}
		writeObject(c.w, c.r, c.out, http.StatusOK, table, c.viewKind("Table"))
		return nil
	case "PartialObjectMetadataList":
		list := &metav1.PartialObjectMetadataList{ListMeta: listMeta(l), Items: make([]metav1.PartialObjectMetadata, 0, len(l.Records))}
		for _, rec := range l.Records {
			obj, err := c.object(rec)
			if err != nil {
				return err
			}
			item := partial(obj)
			setKind(item, c.viewKind("PartialObjectMetadata"))
			list.Items = append(list.Items, *item)
		}
		writeObject(c.w, c.r, c.out, http.StatusOK, list, c.viewKind("PartialObjectMetadataList"))
		return nil
	}
	return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (*%s)", c.hubType("List")))
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
