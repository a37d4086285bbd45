//! Writes rows of one kind as a Parquet file, column by column, and reads them back. In: rows, or
//! bytes of any origin. Out: bytes, or rows. Knows nothing of what columns mean, of folders, or of
//! invariants between rows.
//!
//! Input may be hostile. Its size is bounded before it is parsed; data pages are decompressed here
//! and not by the parser, which would trust the size that they claim; rows, row groups and texts
//! are counted; and a panic of the parser becomes an error.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::{SerializedFileReader, SerializedPageReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{SchemaDescriptor, Type as Schema};

/// Rows of one row group, which is in memory as columns at once.
pub(crate) const ROWS_PER_GROUP: usize = 1 << 18;

/// Bytes of one decompressed data page. The writer makes pages of at most 1 MiB plus one row.
const DATA_PAGE_BYTES_MAX: usize = 16 << 20;

/// Longest text of one cell, bytes; C++ templates have names of several KiB.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Bytes of all distinct texts of a profile.
const TEXTS_BYTES_MAX: usize = 256 << 20;

/// Compression level. Fast and small enough: levels 1 to 3 differ by a few percent in size.
const ZSTD_LEVEL: i32 = 1;

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Integers and truth values (0 or 1).
    Number(u64),
    /// UTF-8.
    Text(Arc<str>),
    /// Not known.
    Null,
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U64,
    U32,
    Bool,
    Text,
}

/// One column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_nullable: bool,
}

/// A row of a table.
pub(crate) trait TableRow: Clone + Default {
    /// Name of the table.
    const NAME: &'static str;
    /// Most rows that are read.
    const ROWS_MAX: usize;
    /// Columns, in the order of the file.
    const COLUMNS: &'static [Column];

    /// The value in a column.
    fn cell(&self, column: usize) -> Cell;

    /// Sets the value in a column; false if the column cannot hold it.
    fn set(&mut self, column: usize, cell: Cell) -> bool;
}

/// A field that is a column.
pub(crate) trait Value: Sized {
    const KIND: Kind;
    const IS_NULLABLE: bool = false;
    fn cell(&self) -> Cell;
    fn from_cell(cell: Cell) -> Option<Self>;
}

/// Makes a struct's fields the columns of a table, in the given order.
macro_rules! table {
    ($row:ty, $name:literal, $max:expr, [$($field:ident),* $(,)?]) => {
        impl $crate::table::TableRow for $row {
            const NAME: &'static str = $name;
            const ROWS_MAX: usize = $max;
            const COLUMNS: &'static [$crate::table::Column] = {
                const fn of<R, V: $crate::table::Value>(
                    name: &'static str,
                    _: fn(&R) -> &V,
                ) -> $crate::table::Column {
                    $crate::table::Column { name, kind: V::KIND, is_nullable: V::IS_NULLABLE }
                }
                &[$(of(stringify!($field), |row: &$row| &row.$field)),*]
            };

            fn cell(&self, column: usize) -> $crate::table::Cell {
                let mut at = 0;
                $(if column == at { return $crate::table::Value::cell(&self.$field); }
                #[allow(unused_assignments)] { at += 1; })*
                unreachable!("column {column} of {}", $name)
            }

            fn set(&mut self, column: usize, cell: $crate::table::Cell) -> bool {
                let mut at = 0;
                $(if column == at {
                    let Some(value) = $crate::table::Value::from_cell(cell) else { return false };
                    self.$field = value;
                    return true;
                }
                #[allow(unused_assignments)] { at += 1; })*
                unreachable!("column {column} of {}", $name)
            }
        }
    };
}
pub(crate) use table;

/// Distinct texts, bounded in number and size.
#[derive(Default)]
pub(crate) struct Texts {
    known: HashSet<Arc<str>>,
    bytes: usize,
}

impl Texts {
    fn keep(&mut self, text: &[u8]) -> Result<Arc<str>, String> {
        let text = std::str::from_utf8(text).map_err(|_| "a text is not UTF-8".to_owned())?;
        if let Some(known) = self.known.get(text) {
            return Ok(Arc::clone(known));
        }
        self.bytes += text.len();
        if text.len() > TEXT_BYTES_MAX || self.bytes > TEXTS_BYTES_MAX {
            return Err(format!(
                "a text of {} bytes, {} in all; at most {TEXT_BYTES_MAX} and {TEXTS_BYTES_MAX}",
                text.len(),
                self.bytes
            ));
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        Ok(text)
    }
}

/// A file with these rows.
pub(crate) fn write<R: TableRow>(rows: &[R]) -> ParquetResult<Vec<u8>> {
    let level = ZstdLevel::try_new(ZSTD_LEVEL)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_offset_index_disabled(true)
        .set_created_by(format!("tiercel {}", env!("CARGO_PKG_VERSION")))
        .build();
    let mut bytes = Vec::new();
    let schema = Arc::new(schema::<R>()?);
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties))?;
    for group in rows.chunks(ROWS_PER_GROUP) {
        let mut out = writer.next_row_group()?;
        for at in 0..R::COLUMNS.len() {
            write_column(&mut out, group, at)?;
        }
        out.close()?;
    }
    writer.close()?;
    Ok(bytes)
}

/// The rows of a file with exactly these columns; the error is what is wrong.
pub(crate) fn read<R: TableRow>(bytes: Bytes, texts: &mut Texts) -> Result<Vec<R>, String> {
    let parse = AssertUnwindSafe(|| parse(bytes, texts));
    let parsed = std::panic::catch_unwind(parse);
    parsed.unwrap_or_else(|_| Err("the Parquet parser fails on it".to_owned()))
}

fn schema<R: TableRow>() -> ParquetResult<Schema> {
    let fields = R::COLUMNS.iter().map(|column| Ok(Arc::new(field(column)?)));
    Schema::group_type_builder(R::NAME).with_fields(fields.collect::<ParquetResult<_>>()?).build()
}

fn field(column: &Column) -> ParquetResult<Schema> {
    let integer = |bit_width| LogicalType::integer(bit_width, false);
    let (physical, logical) = match column.kind {
        Kind::U64 => (Physical::INT64, Some(integer(64))),
        Kind::U32 => (Physical::INT32, Some(integer(32))),
        Kind::Bool => (Physical::BOOLEAN, None),
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let repetition = if column.is_nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Schema::primitive_type_builder(column.name, physical)
        .with_logical_type(logical)
        .with_repetition(repetition)
        .build()
}

/// A number of a 32-bit column, as Parquet stores it.
fn as_i32(number: u64) -> i32 {
    u32::try_from(number).expect("cells of 32-bit columns are made from u32").cast_signed()
}

fn write_column<R: TableRow, W: std::io::Write + Send>(
    out: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[R],
    at: usize,
) -> ParquetResult<()> {
    let column = R::COLUMNS[at];
    let cells = || rows.iter().map(|row| row.cell(at));
    let levels: Option<Vec<i16>> =
        column.is_nullable.then(|| cells().map(|cell| i16::from(cell != Cell::Null)).collect());
    let levels = levels.as_deref();
    let numbers = || {
        cells().filter_map(|cell| match cell {
            Cell::Number(number) => Some(number),
            Cell::Text(_) | Cell::Null => None,
        })
    };
    let mut writer = out.next_column()?.expect("as many columns as in the schema");
    match column.kind {
        Kind::U64 => {
            let values: Vec<i64> = numbers().map(u64::cast_signed).collect();
            writer.typed::<Int64Type>().write_batch(&values, levels, None)?;
        }
        Kind::U32 => {
            let values: Vec<i32> = numbers().map(as_i32).collect();
            writer.typed::<Int32Type>().write_batch(&values, levels, None)?;
        }
        Kind::Bool => {
            let values: Vec<bool> = numbers().map(|number| number != 0).collect();
            writer.typed::<BoolType>().write_batch(&values, levels, None)?;
        }
        Kind::Text => {
            let text = |cell| match cell {
                Cell::Text(text) => Some(ByteArray::from(text.as_bytes().to_vec())),
                Cell::Number(_) | Cell::Null => None,
            };
            let values: Vec<ByteArray> = cells().filter_map(text).collect();
            writer.typed::<ByteArrayType>().write_batch(&values, levels, None)?;
        }
    }
    writer.close()
}

fn parse<R: TableRow>(bytes: Bytes, texts: &mut Texts) -> Result<Vec<R>, String> {
    let said = |error: ParquetError| error.to_string();
    let file = SerializedFileReader::new(bytes.clone()).map_err(said)?;
    let meta = file.metadata().file_metadata();
    let expected = SchemaDescriptor::new(Arc::new(schema::<R>().map_err(said)?));
    let columns = |schema: &SchemaDescriptor| -> Vec<_> {
        let columns = schema.columns().iter();
        columns.map(|c| (c.name().to_owned(), c.physical_type(), c.max_def_level())).collect()
    };
    if columns(meta.schema_descr()) != columns(&expected) {
        return Err("it has other columns".to_owned());
    }
    let claimed = usize::try_from(meta.num_rows()).unwrap_or(usize::MAX);
    if claimed > R::ROWS_MAX {
        return Err(format!("it has {claimed} rows; at most {} are read", R::ROWS_MAX));
    }
    let mut rows: Vec<R> = Vec::new();
    let bytes = Arc::new(bytes);
    for group in file.metadata().row_groups() {
        let count = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
        if count > ROWS_PER_GROUP || rows.len() + count > claimed {
            return Err(format!("a row group has {count} rows"));
        }
        let start = rows.len();
        rows.resize(start + count, R::default());
        for at in 0..R::COLUMNS.len() {
            read_column(&bytes, group, at, &mut rows[start..], texts)?;
        }
    }
    if rows.len() != claimed {
        return Err(format!("it has {} rows instead of {claimed}", rows.len()));
    }
    Ok(rows)
}

fn read_column<R: TableRow>(
    bytes: &Arc<Bytes>,
    group: &RowGroupMetaData,
    at: usize,
    rows: &mut [R],
    texts: &mut Texts,
) -> Result<(), String> {
    let column = R::COLUMNS[at];
    let pages = Unpacked::new(bytes, group.column(at), rows.len());
    let pages = pages.map_err(|error| error.to_string())?;
    let number = |cell: Option<u64>| cell.map_or(Cell::Null, Cell::Number);
    let cells: Vec<Cell> = match column.kind {
        Kind::U64 => {
            let values = values::<Int64Type>(group, at, pages, rows.len())?;
            values.into_iter().map(|v| number(v.map(i64::cast_unsigned))).collect()
        }
        Kind::U32 => {
            let values = values::<Int32Type>(group, at, pages, rows.len())?;
            values.into_iter().map(|v| number(v.map(|v| u64::from(v.cast_unsigned())))).collect()
        }
        Kind::Bool => {
            let values = values::<BoolType>(group, at, pages, rows.len())?;
            values.into_iter().map(|v| number(v.map(u64::from))).collect()
        }
        Kind::Text => {
            let values = values::<ByteArrayType>(group, at, pages, rows.len())?;
            let text = |value: Option<ByteArray>| match value {
                Some(value) => texts.keep(value.data()).map(Cell::Text),
                None => Ok(Cell::Null),
            };
            values.into_iter().map(text).collect::<Result<_, _>>()?
        }
    };
    for (row, cell) in rows.iter_mut().zip(cells) {
        if !row.set(at, cell) {
            return Err(format!("column {} has an invalid value", column.name));
        }
    }
    Ok(())
}

/// The values of a column of a row group, one per row.
fn values<T: DataType>(
    group: &RowGroupMetaData,
    at: usize,
    pages: Unpacked,
    rows: usize,
) -> Result<Vec<Option<T::T>>, String> {
    let descriptor = group.column(at).column_descr_ptr();
    let is_nullable = descriptor.max_def_level() > 0;
    let mut reader = ColumnReaderImpl::<T>::new(descriptor, Box::new(pages));
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let read = reader.read_records(rows, is_nullable.then_some(&mut levels), None, &mut values);
    let (records, _, _) = read.map_err(|error| error.to_string())?;
    if records != rows {
        return Err(format!("a column has {records} values for {rows} rows"));
    }
    if !is_nullable {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(levels.into_iter().map(|level| if level == 0 { None } else { values.next() }).collect())
}

/// The data pages of a column, decompressed within [`DATA_PAGE_BYTES_MAX`].
struct Unpacked {
    /// Makes the parser treat them as uncompressed.
    packed: SerializedPageReader<Bytes>,
    unpack: zstd::bulk::Decompressor<'static>,
}

impl Unpacked {
    fn new(bytes: &Arc<Bytes>, column: &ColumnChunkMetaData, rows: usize) -> ParquetResult<Self> {
        if !matches!(column.compression(), Compression::ZSTD(_)) {
            return Err(ParquetError::General("it is not compressed as ours are".to_owned()));
        }
        let plain = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED);
        let packed = SerializedPageReader::new(Arc::clone(bytes), &plain.build()?, rows, None)?;
        Ok(Unpacked { packed, unpack: zstd::bulk::Decompressor::new()? })
    }

    fn unpack(&mut self, packed: &Bytes) -> ParquetResult<Bytes> {
        if packed.is_empty() {
            return Ok(Bytes::new());
        }
        Ok(self.unpack.decompress(packed, DATA_PAGE_BYTES_MAX)?.into())
    }
}

impl Iterator for Unpacked {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Unpacked {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let Some(mut page) = self.packed.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => {
                *buf = self.unpack(buf)?;
            }
            Page::DataPageV2 { .. } => {
                return Err(ParquetError::General("it is not written as ours are".to_owned()));
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.packed.skip_next_page()
    }
}

macro_rules! numbers {
    ($($type:ty: $kind:ident),*) => {$(
        impl Value for $type {
            const KIND: Kind = Kind::$kind;

            fn cell(&self) -> Cell {
                Cell::Number(u64::from(*self))
            }

            fn from_cell(cell: Cell) -> Option<$type> {
                match cell {
                    Cell::Number(number) => number.try_into().ok(),
                    Cell::Text(_) | Cell::Null => None,
                }
            }
        }
    )*};
}
numbers!(u64: U64, u32: U32);

impl Value for bool {
    const KIND: Kind = Kind::Bool;

    fn cell(&self) -> Cell {
        Cell::Number(u64::from(*self))
    }

    fn from_cell(cell: Cell) -> Option<bool> {
        u64::from_cell(cell).map(|number| number != 0)
    }
}

impl Value for Arc<str> {
    const KIND: Kind = Kind::Text;

    fn cell(&self) -> Cell {
        Cell::Text(Arc::clone(self))
    }

    fn from_cell(cell: Cell) -> Option<Arc<str>> {
        match cell {
            Cell::Text(text) => Some(text),
            Cell::Number(_) | Cell::Null => None,
        }
    }
}

impl<V: Value> Value for Option<V> {
    const KIND: Kind = V::KIND;
    const IS_NULLABLE: bool = true;

    fn cell(&self) -> Cell {
        self.as_ref().map_or(Cell::Null, V::cell)
    }

    fn from_cell(cell: Cell) -> Option<Option<V>> {
        match cell {
            Cell::Null => Some(None),
            cell => V::from_cell(cell).map(Some),
        }
    }
}
