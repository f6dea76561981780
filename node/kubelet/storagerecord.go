package kubelet

import (
	"errors"
	"maps"

	"knarr/node/kubelet/podfile"
)

// clone is one whose figures of files stay as they are.
func (s podStorage) clone() podStorage {
	s.logs, s.volumes = maps.Clone(s.logs), maps.Clone(s.volumes)
	return s
}

// raise makes the figures of files no less than those of o.
func (s podStorage) raise(o podStorage) podStorage {
	s.logs, s.volumes = raiseEach(s.logs, o.logs), raiseEach(s.volumes, o.volumes)
	s.files = s.files.Raise(o.files)
	return s
}

func raiseEach(a, b map[string]podfile.Usage) map[string]podfile.Usage {
	all := map[string]podfile.Usage{}
	maps.Copy(all, a)
	for name, u := range b {
		all[name] = all[name].Raise(u)
	}
	return all
}

// A storageRecord is what measurements counted of a pod's files. One that did not count
// them to the end says that there is so much at least: it raises what is known, and never
// lowers it, or a pod would hide its files by making measurements fail.
type storageRecord struct {
	whole podStorage // of the last one that counted all
	part  podStorage // of the last one, if it did not
	going podStorage // of the one that goes on
	moved int        // how many in a row did not, for directories were moved
}

// hidesAfter is after how many measurements in a row that directories were moved from
// under a pod is taken to hide its files. A pod at work moves one at a bad time, but not
// in each measurement.
const hidesAfter = 3

// known is how much there is at least.
func (r storageRecord) known() podStorage { return r.whole.raise(r.part).raise(r.going) }

// hides says whether the pod moves its directories so that they are not counted.
func (r storageRecord) hides() bool { return r.moved >= hidesAfter }

// shown is the record when a measurement has counted so much.
func (r storageRecord) shown(s podStorage) storageRecord {
	r.going = s
	return r
}

// ended is the record when a measurement has ended.
func (r storageRecord) ended(s podStorage, err error) storageRecord {
	if err == nil {
		return storageRecord{whole: s}
	}
	if errors.Is(err, podfile.ErrMoved) {
		r.moved++
	}
	r.part, r.going = s, podStorage{}
	return r
}
