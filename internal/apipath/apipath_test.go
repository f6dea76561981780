package apipath

import "testing"

func TestCheck(t *testing.T) {
	if err := Check("apps", "v1", "namespaces", "a..b", "x.example.com"); err != nil {
		t.Error(err)
	}
	for _, s := range []string{"", ".", "..", "../../victim/volumesnapshots/s", "a/b", "a%2fb"} {
		if Check("apis", s) == nil {
			t.Errorf("%q is a segment", s)
		}
	}
}
