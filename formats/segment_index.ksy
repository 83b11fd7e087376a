meta:
  id: kafka_backup_segment_index
  title: Index file of a Kafka backup segment
  license: CC0-1.0
  endian: be
doc: |
  `segment_partition_<p>_from_offset_<o>_index`: where each record of the records file lies, in its uncompressed form.
  What the types below can't say: offsets strictly increase; the first position is 1; position + len_record is the
  next entry's position and, for the last, the size of the records file.
seq:
  - id: magic
    contents: [0x01]
  - id: entries
    type: entry
    repeat: eos
types:
  entry:
    seq:
      - id: offset
        type: s8
        valid:
          min: 0
      - id: position
        type: s8
        doc: Start in the records file, whose magic byte is counted.
        valid:
          min: 1
      - id: len_record
        type: s8
        valid:
          min: 24
