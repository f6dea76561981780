// Package eviction decides when a node that runs out of something is under pressure
// and when pods have to go. It reads what was measured and the thresholds, and writes
// nothing.
package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Signals are what can run out, in the order in which they are looked at: memory
// first, since the kernel does not wait.
var Signals = []string{
	MemoryAvailable, AllocatableMemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree,
	ContainerFsAvailable, ContainerFsInodesFree, PIDAvailable,
}

// The signals.
const (
	MemoryAvailable            = "memory.available"
	AllocatableMemoryAvailable = "allocatableMemory.available"
	NodeFsAvailable            = "nodefs.available"
	NodeFsInodesFree           = "nodefs.inodesFree"
	ImageFsAvailable           = "imagefs.available"
	ImageFsInodesFree          = "imagefs.inodesFree"
	ContainerFsAvailable       = "containerfs.available"
	ContainerFsInodesFree      = "containerfs.inodesFree"
	PIDAvailable               = "pid.available"
)

// An Amount is a quantity, or a part of what there is in all.
type Amount struct {
	Quantity int64
	Part     float32
	// Decimal says that the quantity was written without binary units.
	Decimal bool
}

// Of is the amount where there is so much in all.
func (a Amount) Of(all int64) int64 {
	if a.Part > 0 {
		return int64(float64(a.Part) * float64(all))
	}
	return a.Quantity
}

// Text is the amount, where there is so much in all, as it was written; parts are in binary
// units, of whatever they are.
func (a Amount) Text(all int64) string { return Text(a.Of(all), a.Decimal && a.Part == 0) }

// Text is a quantity in binary or in decimal units.
func Text(n int64, decimal bool) string {
	format := resource.BinarySI
	if decimal {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(n, format).String()
}

// A Threshold is met when less than Value is available.
type Threshold struct {
	Signal string
	Value  Amount
	// Grace is how long less must be available before pods go; 0: a hard threshold.
	Grace time.Duration
	// Reclaim is how much more than Value has to be available for the pressure to end.
	Reclaim Amount
}

// Hard says that pods go at once.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// Parse reads thresholds as the kubelet's configuration has them. Allocatable says
// that the memory of all pods is limited to what is allocatable: then the hard
// threshold of memory is that of the pods' own group as well.
func Parse(hard, soft, grace, reclaim map[string]string, allocatable bool) ([]Threshold, error) {
	all, err := statements(hard)
	if err != nil {
		return nil, err
	}
	softs, err := statements(soft)
	if err != nil {
		return nil, err
	}
	periods := map[string]time.Duration{}
	for _, signal := range sorted(grace) {
		if !known(signal) {
			return nil, unsupported(signal)
		}
		d, err := time.ParseDuration(grace[signal])
		if err != nil {
			return nil, fmt.Errorf("eviction grace period %v: %w", signal, err)
		}
		if d < 0 {
			return nil, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", grace[signal])
		}
		periods[signal] = d
	}
	for _, t := range softs {
		period, ok := periods[t.Signal]
		if !ok {
			return nil, fmt.Errorf("grace period must be specified for the soft eviction threshold %v", t.Signal)
		}
		t.Grace = period
		all = append(all, t)
	}
	least, err := reclaims(reclaim)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Reclaim = least[all[i].Signal]
	}
	if allocatable {
		for _, t := range all {
			if t.Signal == MemoryAvailable && t.Hard() {
				t.Signal = AllocatableMemoryAvailable
				all = append(all, t)
				break
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Threshold) int {
		return cmp.Compare(slices.Index(Signals, a.Signal), slices.Index(Signals, b.Signal))
	})
	return all, nil
}

func known(signal string) bool {
	return slices.Contains(Signals, signal)
}

func unsupported(signal string) error { return fmt.Errorf("unsupported eviction signal %v", signal) }

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func statements(m map[string]string) (out []Threshold, err error) {
	for _, signal := range sorted(m) {
		value := m[signal]
		if !known(signal) {
			return nil, unsupported(signal)
		}
		if value == "0%" || value == "100%" {
			continue // switched off
		}
		if strings.HasSuffix(value, "%") {
			part, err := percentage(value)
			switch {
			case err != nil:
				return nil, fmt.Errorf("eviction percentage threshold %v: %w", signal, err)
			case part < 0:
				return nil, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, value)
			case part > 1:
				return nil, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, value)
			}
			out = append(out, Threshold{Signal: signal, Value: Amount{Part: part}})
			continue
		}
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("eviction threshold %v: %q: %w", signal, value, err)
		}
		if q.Sign() <= 0 {
			return nil, fmt.Errorf("eviction threshold %v must be positive: %s", signal, &q)
		}
		out = append(out, Threshold{Signal: signal, Value: Amount{Quantity: q.Value(), Decimal: q.Format != resource.BinarySI}})
	}
	return out, nil
}

func reclaims(m map[string]string) (map[string]Amount, error) {
	out := map[string]Amount{}
	for _, signal := range sorted(m) {
		value := m[signal]
		if !known(signal) {
			return nil, unsupported(signal)
		}
		if strings.HasSuffix(value, "%") {
			part, err := percentage(value)
			if err != nil {
				return nil, fmt.Errorf("eviction percentage minimum reclaim %v: %w", signal, err)
			}
			if part <= 0 {
				return nil, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, value)
			}
			out[signal] = Amount{Part: part}
			continue
		}
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("eviction minimum reclaim %v: %q: %w", signal, value, err)
		}
		if q.Sign() < 0 {
			return nil, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal)
		}
		out[signal] = Amount{Quantity: q.Value()}
	}
	return out, nil
}

func percentage(s string) (float32, error) {
	n, err := strconv.ParseFloat(strings.TrimRight(s, "%"), 32)
	return float32(n) / 100, err
}
