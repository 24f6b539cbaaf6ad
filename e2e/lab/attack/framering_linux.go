package attack

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What PACKET_TX_RING wants, Documentation/networking/packet_mmap.rst: here a ring of one frame.
const (
	ringHeader = 32 // bytes of struct tpacket2_hdr, behind which a frame that is to be sent begins
	ringAsked  = 1  // TP_STATUS_SEND_REQUEST
	ringWrong  = 4  // TP_STATUS_WRONG_FORMAT
)

// A frameRing is memory from which the kernel takes frames.
type frameRing struct{ memory []byte }

func newFrameRing(fd int) (frameRing, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return frameRing{}, option("PACKET_VERSION", err)
	}
	size := unix.Getpagesize()
	one := unix.TpacketReq{Block_size: uint32(size), Block_nr: 1, Frame_size: uint32(size), Frame_nr: 1}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &one); err != nil {
		return frameRing{}, option("PACKET_TX_RING", err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return frameRing{}, fmt.Errorf("map the ring: %w", err)
	}
	return frameRing{memory}, nil
}

func (r frameRing) close() { _ = unix.Munmap(r.memory) }

// send puts a frame into the ring and has the kernel send it, as sendto(2) would.
func (r frameRing) send(fd int, frame []byte, flags int, to unix.Sockaddr) error {
	if len(frame) > len(r.memory)-ringHeader {
		return unix.EMSGSIZE
	}
	copy(r.memory[ringHeader:], frame)
	binary.NativeEndian.PutUint32(r.memory[4:], uint32(len(frame)))
	status := (*uint32)(unsafe.Pointer(&r.memory[0]))
	atomic.StoreUint32(status, ringAsked)
	if err := unix.Sendto(fd, nil, flags, to); err != nil {
		return err
	}
	if s := atomic.LoadUint32(status); s&ringWrong != 0 {
		return fmt.Errorf("the kernel refuses a frame in the ring: status %d", s)
	}
	return nil
}
