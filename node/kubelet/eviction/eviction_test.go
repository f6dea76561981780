package eviction

import (
	"testing"
	"time"
)

// TestText: an amount is written as it was, and a part in binary units.
func TestText(t *testing.T) {
	for value, want := range map[string]string{"100Mi": "100Mi", "500M": "500M", "1000": "1k", "10%": "3200"} {
		all, err := Parse(map[string]string{PIDAvailable: value}, nil, nil, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := all[0].Value.Text(32000); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	if binary, decimal := Text(32768, false), Text(32768, true); binary != "32Ki" || decimal != "32768" {
		t.Errorf("%q and %q", binary, decimal)
	}
}

func TestParse(t *testing.T) {
	all, err := Parse(map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "0%"},
		map[string]string{"memory.available": "1Gi"}, map[string]string{"memory.available": "1m30s"}, map[string]string{"nodefs.available": "1Gi"}, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []Threshold{
		{Signal: MemoryAvailable, Value: Amount{Quantity: 100 << 20}},
		{Signal: MemoryAvailable, Value: Amount{Quantity: 1 << 30}, Grace: 90 * time.Second},
		{Signal: AllocatableMemoryAvailable, Value: Amount{Quantity: 100 << 20}},
		{Signal: NodeFsAvailable, Value: Amount{Part: 0.1}, Reclaim: Amount{Quantity: 1 << 30}},
	}
	if len(all) != len(want) {
		t.Fatalf("%+v", all)
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("%+v, want %+v", all[i], want[i])
		}
	}
	for _, c := range []struct {
		hard, soft, grace, reclaim map[string]string
		want                       string
	}{
		{hard: map[string]string{"x": "1"}, want: "unsupported eviction signal x"},
		{hard: map[string]string{"memory.available": "-1Gi"}, want: "eviction threshold memory.available must be positive: -1Gi"},
		{hard: map[string]string{"memory.available": "much"}, want: `eviction threshold memory.available: "much": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`},
		{hard: map[string]string{"memory.available": "120%"}, want: "eviction percentage threshold memory.available must be <= 100%: 120%"},
		{soft: map[string]string{"memory.available": "1Gi"}, want: "grace period must be specified for the soft eviction threshold memory.available"},
		{grace: map[string]string{"memory.available": "-1s"}, want: "invalid eviction grace period specified: -1s, must be a positive value"},
		{reclaim: map[string]string{"memory.available": "0%"}, want: "eviction percentage minimum reclaim memory.available must be positive: 0%"},
		{reclaim: map[string]string{"memory.available": "-1"}, want: "negative eviction minimum reclaim specified for memory.available"},
	} {
		if _, err := Parse(c.hard, c.soft, c.grace, c.reclaim, false); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestStep: a soft threshold waits for its grace period, a met one until enough is
// reclaimed, a condition until the pressure has been gone for long enough.
func TestStep(t *testing.T) {
	all, err := Parse(map[string]string{"memory.available": "100"}, map[string]string{"nodefs.available": "50%"},
		map[string]string{"nodefs.available": "1m"}, map[string]string{"memory.available": "20"}, false)
	if err != nil {
		t.Fatal(err)
	}
	s := State{Transition: 5 * time.Minute}
	start := time.Unix(0, 0)
	for _, c := range []struct {
		at           time.Duration
		memory, disk int64
		want         Conditions
		met          string
	}{
		{0, 100, 500, Conditions{}, ""},
		{10 * time.Second, 99, 500, Conditions{Memory: true}, MemoryAvailable},
		{20 * time.Second, 110, 500, Conditions{Memory: true}, MemoryAvailable}, // not enough yet
		{30 * time.Second, 120, 500, Conditions{Memory: true}, ""},
		{40 * time.Second, 110, 499, Conditions{Memory: true, Disk: true}, ""},
		{90 * time.Second, 110, 499, Conditions{Memory: true, Disk: true}, ""},
		{100 * time.Second, 110, 499, Conditions{Memory: true, Disk: true}, NodeFsAvailable},
		{110 * time.Second, 110, 500, Conditions{Memory: true, Disk: true}, ""},
		{120 * time.Second, 110, 499, Conditions{Memory: true, Disk: true}, ""}, // the grace period begins anew
		{319 * time.Second, 110, 500, Conditions{Memory: true, Disk: true}, ""},
		{320 * time.Second, 110, 500, Conditions{Disk: true}, ""},
		{420 * time.Second, 110, 500, Conditions{}, ""},
	} {
		got, met := s.Step(start.Add(c.at), all, map[string]Observation{MemoryAvailable: {c.memory, 1000}, NodeFsAvailable: {c.disk, 1000}})
		first := ""
		if len(met) > 0 {
			first = met[0].Signal
		}
		if got != c.want || first != c.met {
			t.Errorf("after %v: %+v, %q; want %+v, %q", c.at, got, first, c.want, c.met)
		}
	}
}

// TestOrder: memory comes before disk, what cannot be observed does not count.
func TestOrder(t *testing.T) {
	all, err := Parse(map[string]string{"memory.available": "10", "nodefs.available": "10", "pid.available": "10"}, nil, nil, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	var s State
	_, met := s.Step(time.Now(), all, map[string]Observation{NodeFsAvailable: {1, 100}, AllocatableMemoryAvailable: {1, 100}, PIDAvailable: {1, 100}})
	if len(met) != 3 || met[0].Signal != AllocatableMemoryAvailable || met[1].Signal != NodeFsAvailable || met[2].Signal != PIDAvailable {
		t.Errorf("%+v", met)
	}
}
