import { type DisplayValue, FieldType, toDataFrame } from '@grafana/data';
import { expect, it } from 'vitest';
import { dataLookup } from './dataVariables';

const frame = toDataFrame({
  name: 'shops',
  fields: [
    { name: 'Time', type: FieldType.time, values: [1000, 2000] },
    { name: 'shop', type: FieldType.string, values: ['rome', 'oslo'] },
    { name: 'Value', type: FieldType.number, labels: { uuid: 'GPU-1' }, values: [0.5, 0.25] },
  ],
});
const field = frame.fields[2]!;
const lookup = (rest: { rowIndex?: number; calculatedValue?: DisplayValue }) =>
  dataLookup({ __dataContext: { value: { data: [frame], frame, field, ...rest } } });

it.each([
  ['__series', 'name', 'shops'],
  ['__field', 'labels.uuid', 'GPU-1'],
  ['__field', 'labels["uuid"]', 'GPU-1'],
  ['__field', 'labels.absent', ''],
  ['__value', 'raw', '0.25'],
  ['__value', 'time', '2000'],
  ['__data', 'fields.shop', 'oslo'],
  ['__data', 'fields["shop"]', 'oslo'],
  ['__data', 'fields.Value.numeric', '0.25'],
  ['__data', 'fields.absent', undefined],
  ['service', undefined, undefined],
])('%s.%s of the second row is %s', (name, path, expected) => {
  expect(lookup({ rowIndex: 1 })(name, path)).toBe(expected);
});

it('gives the reduced value where a panel shows one', () => {
  const calculatedValue = { numeric: 0.375, text: '37.5', suffix: '%' };
  const of = lookup({ calculatedValue });
  expect([of('__value', 'raw'), of('__value', 'text')]).toEqual(['0.375', '37.5%']);
});

it('knows nothing outside of data', () => {
  expect(dataLookup(undefined)('__value', 'raw')).toBeUndefined();
});
