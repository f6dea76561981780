package encryption

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// seedSize is that of a seed, and of what each value's key is derived with,
// which stands before the value.
const seedSize = 32

var errSeed = errors.New("the stored data was shorter than the required size")

// seeded seals each value with a key of its own, so that no key wears out
// however much is sealed.
type seeded struct{ seed []byte }

func newSeeded(seed []byte) (provider, error) {
	if len(seed) < seedSize {
		return nil, fmt.Errorf("invalid seed length %d used for key generation", len(seed))
	}
	return seeded{seed}, nil
}

func (s seeded) derive(info []byte) (provider, error) {
	key, err := hkdf.Expand(sha256.New, s.seed, string(info), 32)
	if err != nil {
		return nil, fmt.Errorf("failed to KDF expand seed with info: %w", err)
	}
	return newGCM(key)
}

func (s seeded) open(sealed, about []byte) ([]byte, bool, error) {
	if len(sealed) < seedSize {
		return nil, false, errSeed
	}
	p, err := s.derive(sealed[:seedSize])
	if err != nil {
		return nil, false, err
	}
	return p.open(sealed[seedSize:], about)
}

func (s seeded) seal(plain, about []byte) ([]byte, error) {
	info := make([]byte, seedSize)
	_, _ = rand.Read(info) // never fails
	p, err := s.derive(info)
	if err != nil {
		return nil, err
	}
	sealed, err := p.seal(plain, about)
	if err != nil {
		return nil, err
	}
	return append(info, sealed...), nil
}
