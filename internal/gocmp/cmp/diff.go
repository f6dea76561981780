// Package cmp stands for github.com/google/go-cmp/cmp in knarr's program, where
// only a check of etcd's own calls it, and only with ETCD_VERIFY set. The real
// one names methods by reflection, at which the linker keeps every exported
// method of every type: 20 MB of the program. It reads what it is given and
// writes nothing.
package cmp

import (
	"fmt"
	"reflect"
)

// Diff is empty for equal values, and both of them otherwise. The real one takes
// options; nobody here gives any.
func Diff(x, y any) string {
	if reflect.DeepEqual(x, y) {
		return ""
	}
	return fmt.Sprintf("- %+v\n+ %+v\n", x, y)
}
