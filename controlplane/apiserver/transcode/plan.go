package transcode

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A kind is how one value is written.
type kind uint8

const (
	unsupported kind = iota
	text
	boolean
	signed32
	signed64
	binaryText // base64
	message
	items       // a message around a list of strings
	moment      // metav1.Time
	microMoment // metav1.MicroTime
	duration
	quantity
	intOrString
	raw // FieldsV1, RawExtension: JSON in a message
)

// A shape is how often a value is there, and what stands for none.
type shape uint8

const (
	single shape = iota
	pointer
	list
	dictionary
	inline // a message whose members are the object's own
)

type field struct {
	name     string // with quotes and colon
	number   int
	kind     kind
	shape    shape
	omitted  bool // when it is empty
	omitZero bool
	of       *Plan // of messages
}

// A Plan is what there is to know of a type.
type Plan struct {
	fields []field // in the order of JSON
	// places are the fields' indexes plus one, by number.
	places []uint8
}

// maxFields bounds the fields of a type, so that their indexes fit a byte.
const maxFields = 250

var (
	mu    sync.Mutex
	plans = map[reflect.Type]*Plan{}
)

// Of is the plan of the struct that sample points to; nil when its message
// cannot be written without decoding it.
func Of(sample any) *Plan {
	t := reflect.TypeOf(sample)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || marshals(t.Elem()) {
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	return planOf(t.Elem())
}

func planOf(t reflect.Type) *Plan {
	if p, ok := plans[t]; ok {
		return p
	}
	p := &Plan{}
	plans[t] = p // before its fields: types contain themselves
	for sf := range fieldsOf(t) {
		f, ok := fieldOf(sf)
		if !ok {
			continue
		}
		if len(p.fields) == maxFields || f.number < 1 || f.number > 4*maxFields {
			f.kind, f.number, f.omitted = unsupported, 0, false
		}
		for len(p.places) <= f.number {
			p.places = append(p.places, 0)
		}
		p.fields = append(p.fields, f)
		if f.number > 0 {
			p.places[f.number] = uint8(len(p.fields))
		}
	}
	return p
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if sf := t.Field(i); sf.IsExported() && sf.Type != reflect.TypeFor[metav1.TypeMeta]() && !yield(sf) {
				return
			}
		}
	}
}

// fieldOf reads a field's tags; false when it is not in the JSON.
func fieldOf(sf reflect.StructField) (field, bool) {
	tag := sf.Tag.Get("json")
	name, options, _ := strings.Cut(tag, ",")
	if tag == "-" {
		return field{}, false
	}
	f := field{name: strconv.Quote(name) + ":", number: numberOf(sf.Tag.Get("protobuf"))}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			f.omitted = true
		case "omitzero":
			f.omitZero = true
		case "inline", "":
		default:
			return f, true
		}
	}
	t := sf.Type
	if sf.Anonymous && name == "" {
		if t.Kind() == reflect.Struct && !marshals(t) {
			f.kind, f.shape, f.of = message, inline, planOf(t)
		}
		return f, true
	}
	if name == "" {
		return f, true
	}
	switch {
	case t.Kind() == reflect.Slice && !wrapped(t) && t.Elem().Kind() != reflect.Uint8:
		f.shape, t = list, t.Elem()
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	case t.Kind() == reflect.Map:
		if t.Key().Kind() != reflect.String || t.Key().Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return f, true
		}
		f.shape, t = dictionary, t.Elem()
	case t.Kind() == reflect.Pointer:
		f.shape, t = pointer, t.Elem()
	}
	f.kind = kindOf(t)
	if f.kind == message {
		f.of = planOf(t)
	}
	if f.omitZero && (f.shape != single || f.kind != moment) {
		f.kind = unsupported
	}
	if f.kind == items && f.shape != dictionary {
		f.kind = unsupported
	}
	return f, true
}

// numberOf is the field number of a tag like "bytes,1,opt,name=metadata"; 0
// when there is none.
func numberOf(tag string) int {
	for part := range strings.SplitSeq(tag, ",") {
		if n, err := strconv.Atoi(part); err == nil {
			return n
		}
	}
	return 0
}

func kindOf(t reflect.Type) kind {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return moment
	case reflect.TypeFor[metav1.MicroTime]():
		return microMoment
	case reflect.TypeFor[metav1.Duration]():
		return duration
	case reflect.TypeFor[resource.Quantity]():
		return quantity
	case reflect.TypeFor[intstr.IntOrString]():
		return intOrString
	case reflect.TypeFor[metav1.FieldsV1](), reflect.TypeFor[runtime.RawExtension]():
		return raw
	}
	if marshals(t) {
		return unsupported
	}
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		return boolean
	case reflect.Int32:
		return signed32
	case reflect.Int64:
		return signed64
	case reflect.Struct:
		if _, ok := t.FieldByName("TypeMeta"); ok {
			return unsupported // JSON has its kind, and messages do not
		}
		return message
	case reflect.Slice:
		switch {
		case t.Elem().Kind() == reflect.Uint8 && !wrapped(t):
			return binaryText
		case t.Elem().Kind() == reflect.String && wrapped(t) && !marshals(t.Elem()):
			return items
		}
	}
	return unsupported
}

// wrapped says that a slice type is a message of its own.
func wrapped(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[interface{ Marshal() ([]byte, error) }]())
}

// marshals says that a type writes its own JSON.
func marshals(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
