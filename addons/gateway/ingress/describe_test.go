package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// describe writes what is set in a value, so that tests read what was compiled.
func describe(v any) string {
	var b strings.Builder
	write(&b, reflect.ValueOf(v))
	return b.String()
}

func write(b *strings.Builder, v reflect.Value) {
	if v.IsValid() && v.CanInterface() {
		switch is := v.Interface().(type) {
		case *regexp.Regexp, netip.Prefix, netip.AddrPort, time.Duration:
			fmt.Fprint(b, is)
			return
		case time.Time:
			return
		case *x509.CertPool:
			b.WriteString("pool")
			return
		case *tls.Certificate:
			b.WriteString(is.Leaf.Subject.CommonName)
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		write(b, v.Elem())
	case reflect.Struct:
		b.WriteString("{")
		first := true
		for i := range v.NumField() {
			if v.Field(i).IsZero() || v.Type().Field(i).Name == "Created" {
				continue
			}
			if !first {
				b.WriteString(" ")
			}
			first = false
			b.WriteString(v.Type().Field(i).Name + ":")
			write(b, v.Field(i))
		}
		b.WriteString("}")
	case reflect.Slice:
		b.WriteString("[")
		for i := range v.Len() {
			if i > 0 {
				b.WriteString(" ")
			}
			write(b, v.Index(i))
		}
		b.WriteString("]")
	case reflect.Map:
		b.WriteString("[")
		keys := map[string]reflect.Value{}
		for _, k := range v.MapKeys() {
			keys[fmt.Sprint(k)] = v.MapIndex(k)
		}
		for i, k := range slices.Sorted(maps.Keys(keys)) {
			if i > 0 {
				b.WriteString(" ")
			}
			b.WriteString(k + "=")
			write(b, keys[k])
		}
		b.WriteString("]")
	default:
		fmt.Fprint(b, v)
	}
}
