package backend

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// pointsEach is how often each endpoint is on the ring: with a hundred, the busiest
// has some 20 % more than its part.
const pointsEach = 100

// A point is a place on the ring of hashes that leads to an endpoint. An endpoint that
// comes or goes moves only its own part of the values.
type point struct {
	at uint64
	to *Endpoint
}

func ring(of []*Endpoint) []point {
	points := make([]point, 0, len(of)*pointsEach)
	var key [18 + 2]byte
	for _, e := range of {
		address := e.Address.Addr().As16()
		copy(key[:], address[:])
		binary.BigEndian.PutUint16(key[16:], e.Address.Port())
		for i := range uint16(pointsEach) {
			binary.BigEndian.PutUint16(key[18:], i)
			points = append(points, point{mix(key[:]), e})
		}
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	return points
}

// Hash is the same for equal values on all nodes.
func Hash(value string) uint64 { return mix([]byte(value)) }

// mix is FNV-1a, with its high bits mixed as ring compares all of them.
func mix(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// hashed is the endpoint at or after the hash that is well; that of the hash itself if
// none is.
func (s *snapshot) hashed(w Wish, at int64) *Endpoint {
	ring := s.ring()
	i := sort.Search(len(ring), func(i int) bool { return ring[i].at >= w.Hash })
	for k := range ring {
		if e := ring[(i+k)%len(ring)].to; e != w.Not && !e.resting(at) {
			return e
		}
	}
	return ring[i%len(ring)].to
}
