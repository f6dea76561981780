package shim

import (
	"fmt"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
)

// TestFiltersShare: containers of equal filters have one between them, others their own, and
// filters without end are not kept.
func TestFiltersShare(t *testing.T) {
	var f filters
	made := func(call string) *configs.Seccomp {
		return &configs.Seccomp{DefaultAction: configs.Errno, Syscalls: []*configs.Syscall{{Name: call, Action: configs.Allow}}}
	}
	a, b, other := made("read"), made("read"), made("write")
	for _, s := range []*configs.Seccomp{a, other, b, nil} {
		f.share(s)
	}
	if a.Syscalls[0] != b.Syscalls[0] {
		t.Error("equal filters lie in memory twice")
	}
	if other.Syscalls[0].Name != "write" || other.DefaultAction != configs.Errno {
		t.Errorf("another filter became %+v", other)
	}
	for i := range 3 * maxFilters {
		f.share(made(fmt.Sprint("call", i)))
		f.share(made("read")) // in use all the time
	}
	if len(f.known) != maxFilters {
		t.Errorf("%d filters are kept", len(f.known))
	}
	last := made("read")
	if f.share(last); last.Syscalls[0] != a.Syscalls[0] {
		t.Error("a filter in use was forgotten")
	}
}
