package endpoints

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readQuery fills the fields of opts, a pointer to an options type such as
// PodLogOptions, from the query parameters of their JSON names. Parameters it
// does not know are ignored, as upstream does.
func readQuery(values url.Values, opts any) error {
	v := reflect.ValueOf(opts).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		given, ok := values[name]
		if name == "" || !ok || len(given) == 0 {
			continue
		}
		if err := setField(v.Field(i), given); err != nil {
			return fmt.Errorf("query parameter %s: %w", name, err)
		}
	}
	return nil
}

var timeType = reflect.TypeFor[metav1.Time]()

func setField(f reflect.Value, given []string) error {
	text := given[0]
	switch {
	case f.Kind() == reflect.Pointer:
		p := reflect.New(f.Type().Elem())
		if err := setField(p.Elem(), given); err != nil {
			return err
		}
		f.Set(p)
	case f.Type() == timeType:
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return err
		}
		f.Set(reflect.ValueOf(metav1.NewTime(t)))
	case f.Kind() == reflect.String:
		f.SetString(text)
	case f.Kind() == reflect.Bool: // present without a value is true
		f.SetBool(text != "false" && text != "0")
	case f.CanInt():
		n, err := strconv.ParseInt(text, 10, f.Type().Bits())
		if err != nil {
			return err
		}
		f.SetInt(n)
	case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.String:
		f.Set(reflect.ValueOf(given))
	case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Int32:
		var numbers []int32
		for _, g := range given {
			for part := range strings.SplitSeq(g, ",") {
				n, err := strconv.ParseInt(part, 10, 32)
				if err != nil {
					return err
				}
				numbers = append(numbers, int32(n))
			}
		}
		f.Set(reflect.ValueOf(numbers))
	}
	return nil
}
