// Package apipath checks names that users chose before they become part of a path of the
// API: joined to one, ".." would lead to objects of other namespaces, which whoever asks
// may read and the user may not. It reads and writes nothing.
package apipath

import (
	"fmt"
	"strings"

	"k8s.io/client-go/rest"
)

// Check is an error for the first of the segments that is no single one: "", "..", or with
// a slash in it.
func Check(segments ...string) error {
	for _, s := range segments {
		wrong := rest.IsValidPathSegmentName(s)
		if s == "" {
			wrong = []string{"may not be empty"}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("invalid name %q: %s", s, strings.Join(wrong, ", "))
		}
	}
	return nil
}
