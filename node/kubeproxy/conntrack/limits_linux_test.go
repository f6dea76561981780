package conntrack

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// Limits are set and given back; a higher limit that is found stays, and so does what
// somebody has changed meanwhile.
func TestLimits(t *testing.T) {
	dir, record := t.TempDir(), filepath.Join(t.TempDir(), "record.json")
	file := func(name string) string { return filepath.Join(dir, name) }
	const established, closeWait, most = "nf_conntrack_tcp_timeout_established", "nf_conntrack_tcp_timeout_close_wait", "nf_conntrack_max"
	write := func(name, value string) {
		t.Helper()
		if err := os.WriteFile(file(name), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, value string) {
		t.Helper()
		if got, err := read(file(name)); err != nil || got != value {
			t.Errorf("%s is %q, %v; want %s", name, got, err, value)
		}
	}
	write(established, "432000")
	write(closeWait, "60")
	write(most, "1000")
	l := Limits{MaxPerCore: 2000, Min: 100, Established: 24 * time.Hour, CloseWait: time.Hour}
	for range 2 { // a second start finds what the first one set
		if err := l.set(dir, record); err != nil {
			t.Fatal(err)
		}
		want(established, "86400")
		want(closeWait, "3600")
		want(most, strconv.Itoa(2000*runtime.NumCPU()))
	}
	write(closeWait, "120")
	if err := restore(dir, record); err != nil {
		t.Fatal(err)
	}
	want(established, "432000")
	want(closeWait, "120")
	want(most, "1000")

	write(most, "10000000")
	if err := l.set(dir, filepath.Join(t.TempDir(), "other.json")); err != nil {
		t.Fatal(err)
	}
	want(most, "10000000")
}

// A machine without these settings, as most network namespaces, is no error.
func TestLimitsThatAreNotThere(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record.json")
	if err := DefaultLimits.set(filepath.Join(t.TempDir(), "none"), record); err != nil {
		t.Fatal(err)
	}
	if err := restore("/nowhere", record); err != nil {
		t.Fatal(err)
	}
}
