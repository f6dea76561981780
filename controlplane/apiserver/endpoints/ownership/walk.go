package ownership

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A comparison is what an update has done.
type comparison struct {
	changed, removed Set // changed is added or modified
	path             []string
	arena            arena
	names            []string // room for names of items
	nameless         bool     // a list of named items has one without any of its keys
}

var comparisons = sync.Pool{New: func() any { return new(comparison) }}

// compare walks two states of an object; the old one may be an empty object. What
// it returns is to be freed, and nothing of it kept.
func compare(old, obj reflect.Value) *comparison {
	c := comparisons.Get().(*comparison)
	c.structs(planOf(obj.Type()), old, obj)
	c.changed.sort()
	c.removed.sort()
	return c
}

// free makes c another's.
func (c *comparison) free() {
	clear(c.path[:cap(c.path)])
	c.arena.reset()
	*c = comparison{path: c.path[:0], arena: c.arena}
	comparisons.Put(c)
}

// Values: the zero reflect.Value is absent; a nil pointer, slice or map is
// null. Pointers are followed.
func follow(v reflect.Value) reflect.Value {
	for v.IsValid() && v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

// inPlace says that v lies in memory as the value itself. A pointer that was not
// followed is nil: what lies at its own address is not what it points to.
func inPlace(v reflect.Value) bool { return v.CanAddr() && v.Kind() != reflect.Pointer }

func isNull(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return v.IsNil()
	}
	return false
}

func (c *comparison) value(p *plan, elem string, l, r reflect.Value) {
	if !l.IsValid() && !r.IsValid() {
		return
	}
	l, r = follow(l), follow(r)
	if p.exact != nil && inPlace(l) && inPlace(r) && p.exact(l.Addr().UnsafePointer(), r.Addr().UnsafePointer()) {
		return
	}
	c.path = append(c.path, elem)
	defer func() { c.path = c.path[:len(c.path)-1] }()
	if p.bare {
		c.structs(p, l, r)
		return
	}
	if p.shape == leaf || c.empty(p, l) && c.empty(p, r) {
		switch {
		case !l.IsValid():
			c.changed.insert(&c.arena, c.path)
		case !r.IsValid():
			c.removed.insert(&c.arena, c.path)
		case !same(l, r):
			c.changed.insert(&c.arena, c.path)
		}
		return
	}
	switch p.shape {
	case structs:
		c.structs(p, l, r)
	case maps:
		c.maps(p, l, r)
	case sets:
		c.sets(l, r)
	case keyed:
		c.keyed(p, l, r)
	}
	if !l.IsValid() {
		c.changed.insert(&c.arena, c.path)
	} else if !r.IsValid() {
		c.removed.insert(&c.arena, c.path)
	}
}

// empty says that there is nothing below v to be walked.
func (c *comparison) empty(p *plan, v reflect.Value) bool {
	if !v.IsValid() || isNull(v) {
		return true
	}
	switch p.shape {
	case structs:
		s := structOf(v)
		for i := range p.fields {
			if !s.lacks(&p.fields[i]) {
				return false
			}
		}
		return true
	case maps, sets, keyed:
		return v.Len() == 0
	}
	return false
}

func (c *comparison) structs(p *plan, l, r reflect.Value) {
	left, right := structOf(l), structOf(r)
	for i := range p.fields {
		f := &p.fields[i]
		if left.lacks(f) && right.lacks(f) {
			continue
		}
		c.value(f.plan, f.elem, left.field(f), right.field(f))
	}
}

func (c *comparison) maps(p *plan, l, r reflect.Value) {
	switch {
	case p.texts: // no copies of keys and values are needed
		mapsOf(c, textsOf(l), textsOf(r), func(a, b *string) bool { return *a == *b })
		return
	case p.amounts:
		mapsOf(c, amountsOf(l), amountsOf(r), func(a, b *resource.Quantity) bool { return a.String() == b.String() })
		return
	}
	if l.IsValid() && !isNull(l) {
		for it := l.MapRange(); it.Next(); {
			var rv reflect.Value
			if r.IsValid() && !isNull(r) {
				rv = r.MapIndex(it.Key())
			}
			c.value(p.elem, "f:"+it.Key().String(), it.Value(), rv)
		}
	}
	if r.IsValid() && !isNull(r) {
		for it := r.MapRange(); it.Next(); {
			if l.IsValid() && !isNull(l) && l.MapIndex(it.Key()).IsValid() {
				continue
			}
			c.value(p.elem, "f:"+it.Key().String(), reflect.Value{}, it.Value())
		}
	}
}

func textsOf(v reflect.Value) map[string]string {
	if !v.IsValid() {
		return nil
	}
	m := v.UnsafePointer() // named types of texts lie in memory as texts do
	return *(*map[string]string)(unsafe.Pointer(&m))
}

func amountsOf(v reflect.Value) corev1.ResourceList {
	if !v.IsValid() {
		return nil
	}
	return v.Interface().(corev1.ResourceList)
}

// mapsOf is maps for entries that are owned as a whole.
func mapsOf[K ~string, V any](c *comparison, l, r map[K]V, same func(a, b *V) bool) {
	insert := func(s *Set, key K) {
		path := append(c.path, "f:"+string(key))
		s.insert(&c.arena, path)
		c.path = path[:len(path)-1]
	}
	for key, lv := range l {
		if rv, ok := r[key]; !ok {
			insert(&c.removed, key)
		} else if !same(&lv, &rv) {
			insert(&c.changed, key)
		}
	}
	for key := range r {
		if _, ok := l[key]; !ok {
			insert(&c.changed, key)
		}
	}
}

// A structAt is a struct, or none, and where it lies, if that can be determined.
type structAt struct {
	v  reflect.Value
	at unsafe.Pointer
}

func structOf(v reflect.Value) structAt {
	switch {
	case !v.IsValid() || isNull(v):
		return structAt{}
	case v.CanAddr():
		return structAt{v, v.Addr().UnsafePointer()}
	}
	return structAt{v, nil}
}

// lacks says that JSON has no such field.
func (s *structAt) lacks(f *field) bool {
	if s.at != nil {
		return f.absent(s.at)
	}
	return !s.v.IsValid() || !f.of(s.v).IsValid()
}

// field is a field's value, absent when JSON leaves it out.
func (s *structAt) field(f *field) reflect.Value {
	if s.lacks(f) {
		return reflect.Value{}
	}
	return s.v.FieldByIndex(f.index)
}

func length(v reflect.Value) int {
	if !v.IsValid() || isNull(v) {
		return 0
	}
	return v.Len()
}

var leafPlan = &plan{}

func (c *comparison) sets(l, r reflect.Value) {
	name := func(v reflect.Value) string {
		b, err := json.Marshal(v.Interface())
		if err != nil {
			return ""
		}
		return "v:" + string(b)
	}
	c.items(leafPlan, l, r, name)
}

func (c *comparison) keyed(p *plan, l, r reflect.Value) {
	c.items(p.elem, l, r, func(v reflect.Value) string {
		name := p.elemOf(follow(v))
		c.nameless = c.nameless || name == noKeys
		return name
	})
}

const noKeys = "k:{}"

// elemOf names a list's item by its keys.
func (p *plan) elemOf(v reflect.Value) string {
	b := make([]byte, 0, 48)
	b = append(b, "k:{"...)
	for _, k := range p.keys {
		f := follow(v.FieldByIndex(k.index))
		omitted := k.omit && (isNull(f) || f.IsZero())
		if omitted && k.must {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, k.name)
		b = append(b, ':')
		switch {
		case omitted:
			b = append(b, k.def...)
		case f.Kind() == reflect.String:
			b = appendQuoted(b, f.String())
		case f.CanInt():
			b = strconv.AppendInt(b, f.Int(), 10)
		default:
			q, err := json.Marshal(f.Interface())
			if err == nil {
				b = append(b, q...)
			}
		}
	}
	return string(append(b, '}'))
}

// items compares lists by the names of their items.
func (c *comparison) items(p *plan, l, r reflect.Value, name func(reflect.Value) string) {
	left, right := c.nameItems(l, name), c.nameItems(r, name)
	for i, n := range left.names {
		if left.first(n) < i {
			continue // dealt with at its first
		}
		c.item(p, n, &left, &right)
	}
	for i, n := range right.names {
		if right.first(n) < i || left.first(n) >= 0 {
			continue
		}
		c.item(p, n, &left, &right)
	}
}

// A namedList is a list whose items have names.
type namedList struct {
	list  reflect.Value
	names []string
	at    map[string][]int // places of each name; nil while there are few
}

func (c *comparison) nameItems(list reflect.Value, name func(reflect.Value) string) namedList {
	n := namedList{list: list}
	for i := range length(list) {
		c.names = append(c.names, name(list.Index(i)))
	}
	n.names = c.names[:len(c.names):len(c.names)]
	c.names = c.names[len(c.names):]
	if len(n.names) > few {
		n.at = make(map[string][]int, len(n.names))
		for i, name := range n.names {
			n.at[name] = append(n.at[name], i)
		}
	}
	return n
}

// first is the place of the first item of a name, or -1.
func (n *namedList) first(name string) int {
	if n.at == nil {
		return slices.Index(n.names, name)
	}
	if at := n.at[name]; len(at) > 0 {
		return at[0]
	}
	return -1
}

// only is the item of a name, absent when there is none, unless there are more.
func (n *namedList) only(name string) (item reflect.Value, ok bool) {
	i := n.first(name)
	if i < 0 {
		return reflect.Value{}, true
	}
	if n.at != nil && len(n.at[name]) > 1 || n.at == nil && slices.Contains(n.names[i+1:], name) {
		return reflect.Value{}, false
	}
	return n.list.Index(i), true
}

// of are the items of a name.
func (n *namedList) of(name string) (all []reflect.Value) {
	for i := max(n.first(name), 0); i < len(n.names); i++ {
		if n.names[i] == name {
			all = append(all, n.list.Index(i))
		}
	}
	return all
}

// item compares the items of one name. Doubles are owned as a whole.
func (c *comparison) item(p *plan, name string, left, right *namedList) {
	l, one := left.only(name)
	r, other := right.only(name)
	if one && other { // almost always
		c.value(p, name, l, r)
		return
	}
	path := append(c.path[:len(c.path):len(c.path)], name)
	switch ls, rs := left.of(name), right.of(name); {
	case !one && !other:
		if !slices.EqualFunc(ls, rs, same) {
			c.changed.insert(&c.arena, path)
		}
	case !one:
		c.value(p, name, reflect.Value{}, r)
		c.removed.insert(&c.arena, path)
	default:
		c.value(p, name, l, reflect.Value{})
		c.changed.insert(&c.arena, path)
	}
}

// same says that two values are one in JSON.
func same(l, r reflect.Value) bool {
	l, r = follow(l), follow(r)
	if ln, rn := isNull(l), isNull(r); ln || rn {
		return ln == rn
	}
	switch l.Kind() {
	case reflect.String:
		return l.String() == r.String()
	case reflect.Bool:
		return l.Bool() == r.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return l.Int() == r.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return l.Uint() == r.Uint()
	case reflect.Float32, reflect.Float64:
		return l.Float() == r.Float()
	}
	switch a := l.Interface().(type) {
	case resource.Quantity:
		b := r.Interface().(resource.Quantity)
		return a.String() == b.String()
	case metav1.Time:
		b := r.Interface().(metav1.Time)
		return a.IsZero() == b.IsZero() && (a.IsZero() || a.Unix() == b.Unix())
	case metav1.MicroTime:
		b := r.Interface().(metav1.MicroTime)
		return a.IsZero() == b.IsZero() && (a.IsZero() || a.UnixMicro() == b.UnixMicro())
	case intstr.IntOrString:
		b := r.Interface().(intstr.IntOrString)
		return a.Type == b.Type && a.String() == b.String()
	case json.Marshaler:
		x, err1 := a.MarshalJSON()
		y, err2 := r.Interface().(json.Marshaler).MarshalJSON()
		return err1 == nil && err2 == nil && string(x) == string(y)
	}
	switch l.Kind() {
	case reflect.Slice, reflect.Array:
		if l.Len() != r.Len() {
			return false
		}
		for i := range l.Len() {
			if !same(l.Index(i), r.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if l.Len() != r.Len() {
			return false
		}
		for it := l.MapRange(); it.Next(); {
			v := r.MapIndex(it.Key())
			if !v.IsValid() || !same(it.Value(), v) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range l.NumField() {
			if l.Type().Field(i).IsExported() {
				if lf, rf := l.Field(i), r.Field(i); !same(lf, rf) && !(vanishes(l.Type().Field(i), lf) && vanishes(l.Type().Field(i), rf)) {
					return false
				}
			} else {
				x, err1 := json.Marshal(l.Interface())
				y, err2 := json.Marshal(r.Interface())
				return err1 == nil && err2 == nil && string(x) == string(y)
			}
		}
		return true
	}
	return reflect.DeepEqual(l.Interface(), r.Interface())
}

// vanishes says that JSON leaves the field out.
func vanishes(f reflect.StructField, v reflect.Value) bool {
	tag := f.Tag.Get("json")
	for i := range len(tag) {
		if tag[i] == ',' {
			return tag[i+1:] == "omitempty" && isEmpty(v) || tag[i+1:] == "omitzero" && isZero(v)
		}
	}
	return false
}
