package pieces

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"iter"
)

// gzipHead is RFC 1952's header: deflate, no flags, no time, fastest, unknown
// system.
var gzipHead = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255}

// lastBlock is an empty stored block that ends a deflate stream.
var lastBlock = []byte{1, 0, 0, 0xff, 0xff}

// Write writes a gzip document of head, the pieces with between between them, and
// tail. All but the pieces go uncompressed, and are shorter than 64 KiB.
func Write(w io.Writer, head []byte, pieces iter.Seq[Piece], between, tail []byte) error {
	b := make([]byte, 0, collect)
	b = append(b, gzipHead...)
	b = appendStored(b, head)
	crc, size := crc32.ChecksumIEEE(head), len(head)
	add := func(data []byte) {
		b = appendStored(b, data)
		crc = multiply(crc, shiftOf(len(data))) ^ crc32.ChecksumIEEE(data)
		size += len(data)
	}
	first := true
	for p := range pieces {
		if len(b)+len(p.deflated)+len(between)+16 > collect {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
		if !first {
			add(between)
		}
		first = false
		b = append(b, p.deflated...)
		crc = multiply(crc, p.shift) ^ p.crc
		size += p.Size
	}
	add(tail)
	b = append(b, lastBlock...)
	b = binary.LittleEndian.AppendUint32(b, crc)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	_, err := w.Write(b)
	return err
}

// collect is how much is written at once.
const collect = 64 << 10

func appendStored(b, data []byte) []byte {
	if len(data) == 0 {
		return b
	}
	n := uint16(len(data))
	b = append(b, 0, byte(n), byte(n>>8), byte(^n), byte(^n>>8))
	return append(b, data...)
}

// shiftOf is what a CRC-32 is multiplied with when n bytes follow: x^(8n) modulo
// the CRC's polynomial.
func shiftOf(n int) uint32 {
	shift := uint32(1) << 31  // x^0, in the CRC's reflected order
	square := uint32(1) << 23 // x^8: one byte
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			shift = multiply(shift, square)
		}
		square = multiply(square, square)
	}
	return shift
}

// multiply is the product of two polynomials modulo the CRC's.
func multiply(a, b uint32) uint32 {
	product := uint32(0)
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
	return product
}
