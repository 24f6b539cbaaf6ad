package images

import (
	"encoding/binary"
	"fmt"
	"runtime"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// HolderTag is the name under which the holder's image is loaded.
const HolderTag = "sluice-holder:1"

// Holder is the image of containers that only hold a network namespace, in which others run: a program that waits for
// nothing.
func Holder() (Image, error) {
	program, err := waitForever(runtime.GOARCH)
	if err != nil {
		return Image{}, err
	}
	const path = "/holder"
	layer, err := NewLayer(File{Path: path, Mode: 0o755, Body: program})
	if err != nil {
		return Image{}, err
	}
	return Image{
		Tag:    HolderTag,
		Layers: []Layer{layer},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{
			User:       "65532:65532",
			Entrypoint: []string{path},
			// The first process of a container ignores signals that it has no handler for, but this one.
			StopSignal: "SIGKILL",
			Labels: map[string]string{
				"org.opencontainers.image.title":       "sluice-holder",
				"org.opencontainers.image.description": "Holds the network namespace of a container under Sluice.",
			},
		}},
	}, nil
}

// machines has for each architecture its number in an ELF header, and a loop that makes a system call which never
// returns of itself.
var machines = map[string]struct {
	number uint16
	code   []byte
}{
	"amd64": {62, []byte{
		0xb8, 34, 0, 0, 0, // mov eax, 34: pause(2)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp back to the first
	}},
	"arm64": {183, []byte{
		0x00, 0x00, 0x80, 0xd2, // mov x0, 0: ppoll(2) of no descriptors, without a timeout or a mask
		0x01, 0x00, 0x80, 0xd2, // mov x1, 0
		0x02, 0x00, 0x80, 0xd2, // mov x2, 0
		0x03, 0x00, 0x80, 0xd2, // mov x3, 0
		0x28, 0x09, 0x80, 0xd2, // mov x8, 73
		0x01, 0x00, 0x00, 0xd4, // svc 0
		0xfa, 0xff, 0xff, 0x17, // b back to the first
	}},
}

// waitForever makes a static program (elf(5)): a header, one segment with all of the file, and the code.
func waitForever(arch string) ([]byte, error) {
	m, ok := machines[arch]
	if !ok {
		return nil, fmt.Errorf("no holder for %s: use a machine with amd64 or arm64", arch)
	}
	const (
		base                    = 0x400000
		headerBytes, entryBytes = 64, 56
		start                   = headerBytes + entryBytes
	)
	size := uint64(start + len(m.code))
	b := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...) // 64 bits, little endian, version 1
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2) // an executable
	b = le.AppendUint16(b, m.number)
	b = le.AppendUint32(b, 1)          // version
	b = le.AppendUint64(b, base+start) // entry point
	b = le.AppendUint64(b, headerBytes)
	b = le.AppendUint64(b, 0) // no sections
	b = le.AppendUint32(b, 0) // no flags
	for _, n := range []uint16{headerBytes, entryBytes, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // a segment to load
	b = le.AppendUint32(b, 5) // to be read and executed
	for _, n := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, n)
	}
	return append(b, m.code...), nil
}
