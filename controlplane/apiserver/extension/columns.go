package extension

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"
)

// columns are those of `kubectl get`. Paths are parsed when they are first shown.
type columns struct {
	heads []metav1.TableColumnDefinition

	mu    sync.Mutex // parsed paths keep state while they search
	specs []apiextensionsv1.CustomResourceColumnDefinition
	paths []*jsonpath.JSONPath
}

func newColumns(specs []apiextensionsv1.CustomResourceColumnDefinition) *columns {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	if len(specs) == 0 {
		specs = []apiextensionsv1.CustomResourceColumnDefinition{{
			Name: "Age", Type: "date", Description: docs["creationTimestamp"], JSONPath: ".metadata.creationTimestamp"}}
	}
	c := &columns{heads: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: docs["name"]}}}
	for _, s := range specs {
		if jsonpath.New(s.Name).Parse("{"+s.JSONPath+"}") != nil {
			break // what follows a path that cannot be read is not shown, as upstream has it
		}
		text := s.Description
		if text == "" {
			text = "Custom resource definition column (in JSONPath format): " + s.JSONPath
		}
		c.specs = append(c.specs, s)
		c.heads = append(c.heads, metav1.TableColumnDefinition{Name: s.Name, Type: s.Type, Format: s.Format, Description: text, Priority: s.Priority})
	}
	return c
}

func (c *columns) row(u *unstructured.Unstructured) []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paths == nil {
		for _, s := range c.specs {
			p := jsonpath.New(s.Name).AllowMissingKeys(true)
			if p.Parse("{"+s.JSONPath+"}") != nil {
				p = nil
			}
			c.paths = append(c.paths, p)
		}
	}
	cells := []any{u.GetName()}
	for i, p := range c.paths {
		cells = append(cells, cell(p, c.specs[i].Type, u))
	}
	return cells
}

func cell(p *jsonpath.JSONPath, typ string, u *unstructured.Unstructured) any {
	if p == nil {
		return nil
	}
	found, err := p.FindResults(u.Object)
	if err != nil || len(found) == 0 || len(found[0]) == 0 {
		return nil
	}
	value := found[0][0].Interface()
	if typ != "string" {
		return cellOf(typ, value)
	}
	var b bytes.Buffer
	if p.PrintResults(&b, []reflect.Value{reflect.ValueOf(value)}) != nil {
		return nil
	}
	return b.String()
}

// cellOf is a value in its column's type, nil when it has another one.
func cellOf(typ string, value any) any {
	switch typ {
	case "integer":
		switch v := value.(type) {
		case int64:
			return v
		case float64:
			return int64(v)
		case json.Number:
			if n, err := v.Int64(); err == nil {
				return n
			}
		}
	case "number":
		switch v := value.(type) {
		case int64:
			return float64(v)
		case float64:
			return v
		case json.Number:
			if n, err := v.Float64(); err == nil {
				return n
			}
		}
	case "boolean":
		if v, ok := value.(bool); ok {
			return v
		}
	case "date":
		if v, ok := value.(string); ok {
			var t metav1.Time
			if t.UnmarshalQueryParameter(v) != nil {
				return "<invalid>"
			}
			return metatable.ConvertToHumanReadableDateType(t)
		}
	}
	return nil
}

// selectable is a field that selectors may name.
type selectable struct {
	name string
	path []string
}

func newSelectable(list []apiextensionsv1.SelectableField) (out []selectable) {
	for _, f := range list {
		out = append(out, selectable{strings.TrimPrefix(f.JSONPath, "."), pathOf(f.JSONPath)})
	}
	return out
}

// value is the field's as text, empty when it is absent.
func (s *selectable) value(u *unstructured.Unstructured) string {
	v, ok, err := unstructured.NestedFieldNoCopy(u.Object, s.path...)
	if err != nil || !ok || v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
